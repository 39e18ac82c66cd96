"""The benchmark runs: every job once, with a few rows and without the other side."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

from bench.pipeline import JOBS, OURS, Setup

from penstock.testing import Broker


def test_every_job_of_the_benchmark_gives_a_figure(spark: Any, broker: Broker, tmp_path: Path) -> None:
    setup = Setup(spark, broker.bootstrap, (OURS,), tmp_path, turns=1)
    for job, measure in JOBS.items():
        figure = measure(setup, 100, 1_000).as_dict()
        assert (figure["job"], figure["value_bytes"]) == (job, 100)
        assert figure["penstock_rows_per_s"] > 0
