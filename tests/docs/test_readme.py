"""The README is true: its commands and programs are run as they stand there, against a broker on another port."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def shell_lines() -> list[str]:
    """What a reader types into the second terminal."""
    lines = [line[2:].split("  #")[0].strip() for block in blocks("console") for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(("make ", "source "))]


def run(command: list[str] | str, bootstrap: str, **options: object) -> str:
    environment = {**os.environ, "PENSTOCK_BOOTSTRAP": bootstrap, "PATH": f"{COMMANDS}:{os.environ['PATH']}"}
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False, **options
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def test_the_tour(penstock_fresh_broker):
    bootstrap = penstock_fresh_broker.bootstrap
    lines = shell_lines()
    group = next(line for line in lines if line.startswith("penstock group"))
    output = {line: run(["bash", "-c", line], bootstrap) for line in lines if line != group}
    consumed = output["penstock consume orders --from beginning --max 5"]
    assert sorted(re.findall(r"order-\d", consumed)) == [f"order-{n}" for n in range(1, 6)]
    assert "orders" in output["penstock topic describe orders"]
    confluent, own = (block for block in blocks("python") if "def test_" not in block)
    printed = run([sys.executable, "-c", confluent.replace("localhost:9092", bootstrap)], bootstrap)
    assert "two pipes, one turbine" in printed
    assert "shipping" in run(["bash", "-c", group], bootstrap) or "orders" in run(["bash", "-c", group], bootstrap)
    printed = run([sys.executable, "-c", own.replace("localhost:9092", bootstrap)], bootstrap)
    assert "three pipes" in printed


def test_the_fixtures_in_the_readme(tmp_path):
    tests = [block for block in blocks("python") if "def test_" in block]
    file = tmp_path / "test_orders.py"
    file.write_text("from confluent_kafka import Producer\n\n" + "\n\n".join(tests))
    output = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)], "", cwd=tmp_path)
    assert f"{len(tests)} passed" in output


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
    ],
)
def test_links_lead_somewhere(name: str):
    page = ROOT / name
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{name} links to {target}"
