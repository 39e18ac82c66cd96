"""docs/settings.md is what the catalogue says."""

from pathlib import Path

from penstock.metadata.settings import broker_catalogue, topic_catalogue
from penstock.metadata.settings_page import PAGE, main, render

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    assert main(["--check", str(ROOT / PAGE)]) == 0, "run: python -m penstock.metadata.settings_page"


def test_every_setting_is_on_the_page() -> None:
    page = render()
    for setting in [*broker_catalogue(), *topic_catalogue()]:
        assert f"| `{setting.name}` |" in page


def test_an_outdated_page_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "settings.md"
    assert main(["--check", str(page)]) == 1
    assert main([str(page)]) == 0
    assert main(["--check", str(page)]) == 0
    page.write_text("old")
    assert main(["--check", str(page)]) == 1
