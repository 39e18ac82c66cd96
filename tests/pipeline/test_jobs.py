"""What all jobs have in common: commands found by their file, summaries, exit codes, progress."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import cli
from penstock.cli.progress import ProgressLine
from penstock.testing import Broker
from tests.pipeline.test_source import fill

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

import penstock.pipeline


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["pipeline", *arguments], "penstock")
    return int(ended.value.code or 0)


def test_help_is_there_without_spark() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from penstock.cli.main import cli; "
        "out = CliRunner().invoke(cli, ['pipeline', '--help']).output; "
        "print(out, [m for m in ('pyspark', 'pyarrow', 'deltalake', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")
    assert {"archive", "replay"} <= {line.split()[0] for line in done.stdout.splitlines() if line.strip()}


def test_functions_are_found_by_their_name() -> None:
    from penstock.pipeline.archive_job import archive

    assert penstock.pipeline.archive is archive
    assert penstock.pipeline.PipelineError.__name__ == "PipelineError"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = penstock.pipeline.nothing


def test_a_command_prints_its_summary_and_ends_with_a_code(
    spark: Any, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.pipeline.job.JobContext.spark", spark)
    fill(broker, "told", 30, partitions=1)
    here = ["-b", broker.bootstrap, "--table", str(tmp_path / "table")]
    assert run("archive", "told", *here, "--dry-run") == 0
    assert "nothing was written" in capsys.readouterr().out
    assert run("archive", "told", *here, "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["records"] == 30
    assert "archive: 30 of 30 (100 %) records" in printed.err
    assert run("replay", "told", *here, "--quiet") == 2
    printed = capsys.readouterr()
    assert printed.err == (
        "error: 'told' would be replayed into the topic that it was archived from\n"
        "hint: name another with --map told=other, or allow it with --same-topic\n"
    )
    assert run("archive", "told", "-b", "127.0.0.1:1", "--table", str(tmp_path / "other")) == 3
    assert run("archive", *here) == 2
    assert run("archive", "told", *here, "--conf", "x") == 2


def test_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine() as progress:
        for done in range(101):
            progress("copy", done, 100)
        progress("tidy", 5, unit="files")
    assert (
        capsys.readouterr().err == "copy: 0 of 100 (0 %) records\ncopy: 100 of 100 (100 %) records\ntidy: 5 files\n"
    )
    with ProgressLine(quiet=True) as progress:
        progress("copy", 1)
    assert capsys.readouterr().err == ""
