"""The generator: deterministic, up to date, and clear about what is wrong."""

from pathlib import Path

import pytest

from penstock.wire import generate
from penstock.wire.codegen.spec import SpecError, Versions, parse_spec, snake_case


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    return generate.render_all()


def test_committed_code_is_what_the_specs_say(rendered: dict[str, str]) -> None:
    assert generate.stale_files(rendered) == []


def test_check_names_the_stale_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rendered: dict[str, str],
) -> None:
    monkeypatch.setattr(generate, "GENERATED_DIRECTORY", tmp_path)
    monkeypatch.setattr(generate, "render_all", lambda: rendered)
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "fetch.py").write_text("edited by hand")
    (tmp_path / "metadata.py").unlink()
    (tmp_path / "left_over.py").write_text("")
    capsys.readouterr()
    assert generate.main(["--check"]) == 1
    said = capsys.readouterr().err
    assert "fetch.py" in said
    assert "metadata.py" in said
    assert "left_over.py" in said
    assert "python -m penstock.wire.generate" in said
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    assert generate.main(["--what"]) == 2


def test_generated_files_say_so_in_their_first_line(rendered: dict[str, str]) -> None:
    for name, text in rendered.items():
        assert "enerated" in text.splitlines()[0], name
        assert "do not edit" in text.splitlines()[0], name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("request Foo", "not a message header"),
        ("data Foo versions=0 flexible=none\n  Bar int32 @0+", "not a field"),
        ("data Foo versions=0 flexible=none\n      Bar: int32 @0+", "indentation"),
        ("data Foo versions=0 flexible=none\n  Bar: int32 @0+ [loud]", "unknown attribute"),
        ("data Foo versions=0 flexible=none\n  Bar: []Baz @0+", "no fields"),
        ("data Foo versions=0 flexible=none\n  Bar: int32 @0+ [tag 0 1+]", "some of its versions"),
    ],
)
def test_mistakes_in_specs_are_named(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        parse_spec(text)


def test_names_and_versions() -> None:
    assert snake_case("ThrottleTimeMs") == "throttle_time_ms"
    assert snake_case("KRaftVersionFeature") == "k_raft_version_feature"
    assert snake_case("V3AndBelowTopics") == "v3_and_below_topics"
    assert Versions.parse("3-7") == Versions(3, 7)
    assert Versions.parse("2") == Versions(2, 2)
    assert not Versions.parse("none")
    assert not Versions(0, 2) & Versions(4, 5)
    assert Versions.parse("4+").covers(Versions(5, 9))
