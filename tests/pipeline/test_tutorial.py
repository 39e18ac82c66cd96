"""docs/tutorial-pipeline.md does what it says: its programs and commands run as they stand there, in order.

Against a broker on another port, and in the tests' Spark session where a process of its own proves nothing.
"""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import cli
from penstock.testing import Broker

PAGE = Path(__file__).parents[2] / "docs" / "tutorial-pipeline.md"
COMMANDS = Path(sys.executable).parent
IN_SESSION = ("penstock pipeline", "python revenue.py")


def steps(bootstrap: str) -> Iterator[tuple[str, list[str]]]:
    """Programs and commands in the order of the page: `(program, [])`, or `(command, lines it prints)`."""
    text = PAGE.read_text(encoding="utf-8").replace("localhost:9092", bootstrap)
    for language, block in re.findall(r"```(python|console)\n(.*?)```", text, re.DOTALL):
        if language == "python":
            yield block, []
            continue
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            first, *printed = command.strip().splitlines()
            yield first, printed


class Reader:
    """Somebody who types what the page says."""

    def __init__(self, spark: Any, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._environment = {
            **os.environ,
            "PENSTOCK_BOOTSTRAP": bootstrap,
            "PATH": f"{COMMANDS}:{os.environ['PATH']}",
        }
        monkeypatch.setenv("PENSTOCK_BOOTSTRAP", bootstrap)
        monkeypatch.setattr("penstock.pipeline.job.JobContext.spark", spark)

    def do(self, command: str, capsys: pytest.CaptureFixture[str]) -> str:
        if not command.startswith(IN_SESSION):
            options: dict[str, Any] = {"env": self._environment, "capture_output": True, "text": True, "timeout": 300}
            done = subprocess.run(["bash", "-c", command], **options)
            expected = (0, 137, -9) if "KILL" in command else (0,)
            assert done.returncode in expected, f"{command}\n{done.stdout}\n{done.stderr}"
            return str(done.stdout)
        if command.startswith("python "):
            runpy.run_path(command.split()[1], run_name="__main__")
        else:
            with pytest.raises(SystemExit) as ended:
                cli.main(command.split()[1:], "penstock")
            assert ended.value.code == 0, f"{command}\n{capsys.readouterr()}"
        return capsys.readouterr().out


@pytest.mark.timeout(900)
def test_the_tutorial(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed")
    monkeypatch.chdir(tmp_path)
    with Broker() as broker:
        reader = Reader(spark, broker.bootstrap, monkeypatch)
        output = {}
        for step, printed in steps(broker.bootstrap):
            name = re.match(r"# (\w+\.py)\n", step)
            if name:
                # The tests' Java was started in another directory.
                Path(name[1]).write_text(step.replace('"./checkpoint"', repr(f"{tmp_path}/checkpoint")))
                continue
            output[step] = reader.do(step, capsys)
            said = [line.strip() for line in output[step].splitlines()]
            assert sorted(printed) == sorted(line for line in said if line in printed), f"{step}\n{output[step]}"
    assert "nothing left to do" in output["penstock pipeline replay orders --table ./archive --same-topic"]
