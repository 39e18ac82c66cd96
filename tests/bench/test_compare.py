"""Real runs, small: against Penstock alone in every test run, with Kafka and NATS in the long rounds."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.bench import artifacts
from penstock.bench.catalogue import ONE, SETUPS, workloads
from penstock.bench.comparison import Comparison
from penstock.bench.meter import Values
from penstock.bench.progress import Progress, say_duration
from penstock.bench.results.machine import command_line
from penstock.bench.results.report import Report, Row
from penstock.bench.workload import QUICK, Scale, Workload
from penstock.cli.main import cli

TINY = Scale(0.05, 0.01, 4e6, 1e6, 1_000, 0.1)


class Broken(Workload):
    family = "fetch"

    def run_kafka_wire(self, *_: object) -> Values:
        raise RuntimeError("it broke")


def compare(names: set[str], tmp_path: Path, *more: Workload, **options: object) -> Report:
    chosen = [*more, *(workload for workload in workloads() if workload.name in names)]
    assert {workload.name for workload in chosen} >= names
    said: list[str] = []
    comparison = Comparison(chosen, TINY, "tiny", 1, said.append, data=tmp_path, **options)
    comparison.run()
    assert comparison.report.complete
    assert not list(tmp_path.iterdir()), "data is left behind"
    return comparison.report


def row(report: Report, name: str) -> Row:
    return next(row for row in report.rows if row.name == name)


def test_a_tiny_comparison_of_penstock_alone(tmp_path: Path):
    """One failure costs its own row and nothing else."""
    names = {"produce-1kb-16kb", "fetch-cold", "fetch-tail", "fetch-tail-50", "rate-1000", "librdkafka-produce-1kb"}
    report = compare(names, tmp_path, Broken("broken", "", ONE), subjects=["penstock"])
    assert row(report, "broken").left_out == {"penstock": "failed: it broke"}
    for name in names:
        assert not row(report, name).left_out
        [values] = row(report, name).measurements["penstock"]
        assert values["mb_per_s"] > 0
        assert values["peak_rss_mb"] > 10
    for name in ("rate-1000", "fetch-tail", "fetch-tail-50"):
        assert row(report, name).measurements["penstock"][0]["p99_ms"] > 0
    assert row(report, "produce-1kb-16kb").measurements["penstock"][0]["disk_bytes_per_byte"] > 1
    assert 0 < row(report, "start-1-os").measurements["penstock"][0]["start_s"] < 60


@pytest.mark.soak
@pytest.mark.java
def test_a_tiny_comparison_with_kafka_and_nats(tmp_path: Path):
    for obtain in (artifacts.obtain_kafka, artifacts.obtain_nats):
        try:
            obtain(print)
        except artifacts.Unavailable as reason:
            pytest.skip(str(reason))
    names = {"produce-1kb-16kb", "produce-lz4", "fetch-16kb", "fetch-tail", "rate-1000", "java-produce-1kb"}
    names |= {
        "java-consume",
        "connections-100",
        "java-end-to-end",
        "librdkafka-consume",
        "librdkafka-rate",
        "sync-single",
        "rf3-16kb",
    }
    report = compare(names, tmp_path)
    for name in names:
        assert {"penstock", "kafka"} <= row(report, name).measurements.keys(), row(report, name).left_out
    for name in ("connections-100", "fetch-tail", "rate-1000"):
        assert "nats" in row(report, name).measurements, row(report, name).left_out
    assert row(report, "produce-lz4").left_out == {"nats": "no compression in the client protocol"}


def test_what_cannot_be_had_is_told_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PENSTOCK_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(artifacts.Unavailable, match="java is not installed"):
        artifacts.obtain_kafka(print)
    with pytest.raises(artifacts.Unavailable, match="go is not installed"):
        artifacts.obtain_nats(print)


def test_a_failed_fetch_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Programs that stand in for Maven and Go on a machine without a network."""
    for name in ("java", "mvn", "go"):
        (tmp_path / name).write_text("#!/bin/sh\necho no route to host\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PENSTOCK_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(artifacts.Unavailable, match="cannot be fetched from Maven Central: no route to host"):
        artifacts.obtain_kafka(print)
    with pytest.raises(artifacts.Unavailable, match="cannot be built: no route to host"):
        artifacts.obtain_nats(print)


def test_names_are_unique_and_a_quick_comparison_has_every_family():
    every: list[Workload] = workloads()
    assert len({workload.name for workload in every}) == len(every)
    assert {workload.family for workload in every} == {workload.family for workload in every if workload.quick}
    assert {workload.setup for workload in every} == set(SETUPS)
    assert QUICK.seconds < 2


def test_the_command_is_told_without_the_places_it_wrote_to():
    typed = ["bench", "compare", "--json", "/a/b", "--quick", "--charts=/c", "--workloads", "rf3-*"]
    assert command_line(typed) == "penstock bench compare --quick --workloads 'rf3-*'"


def test_progress_tells_the_time_left():
    now = 0.0
    said: list[str] = []
    progress = Progress(4, 2, said.append, lambda: now)
    with progress.preparing():
        now = 60.0
    with progress.step("first") as step:
        now = 160.0
        step.told = "3 MB/s"
    assert said == ["[1/4, 6 min left] first: 3 MB/s"]
    assert say_duration(12) == "12 s"


def test_the_command_lists_and_refuses():
    listed = CliRunner().invoke(cli, ["bench", "compare", "--list", "--workloads", "rf3-*"])
    assert "rf3-16kb" in listed.output
    assert "produce-1kb-large" not in listed.output
    for arguments in (["--workloads", "nothing"], ["--subjects", "rabbit"]):
        assert CliRunner().invoke(cli, ["bench", "compare", *arguments]).exit_code == 2
