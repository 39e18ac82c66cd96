"""The latencies that Penstock promises: produce p99 < 10 ms and end-to-end p99 < 50 ms at half of the peak.

    python -m bench.service_levels            # 60 s for each flush mode; --quick: 5 s
    python -m bench.service_levels --json     # one object

Three brokers, replication factor 3, acks=all, `flush.mode` os and ack. One record of 1 KB per request to one
partition and a consumer of it: first as many as they take, with some in flight, then half as many per second. Each is
sent when it is due, and its latency counts from then. Brokers and load share the machine. Where that is virtual,
seconds in which its hypervisor gave cores to others say little of the broker: it goes on, up to five times as long,
until there are enough seconds without; what it was over all of them is told too. It begins when the disk has come to
rest from what was written and deleted before (`penstock.bench.disk_rest`). Exit 1: a promise broken.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from penstock.bench.catalogue import THREE, THREE_SYNC
from penstock.bench.deadline import time_limit
from penstock.bench.disk_rest import wait_for_disk
from penstock.bench.loads.raw_rate import RateRun
from penstock.bench.meter import Values, latency_values
from penstock.bench.stolen import StolenSeconds, StolenTime
from penstock.bench.subjects import FLUSH_SETTINGS, PENSTOCK, PenstockSubject, Setup
from penstock.bench.workload import scratch_topic

PRODUCE_P99_MS, END_TO_END_P99_MS = 10.0, 50.0
RECORD_BYTES = 1_000
_IN_FLIGHT = 32
_MOST_ROUNDS = 5
_LIMIT_SECONDS = 800.0
_REST_SECONDS = 20.0
"""Without a slow sync; after 3 of them the disk went on giving back what had been deleted, now and then."""


def measure(setup: Setup, data: Path, seconds: float, peak_seconds: float) -> Values:
    data.mkdir()
    rested = wait_for_disk(data, quiet_s=_REST_SECONDS, patience_s=180.0)
    subject = PenstockSubject(setup, data / "brokers")
    try:
        subject.start()
        with scratch_topic(subject, 1) as (topic, leaders):
            run = RateRun(leaders[0], topic, RECORD_BYTES, rate=1, acks=-1)
            run.peak(peak_seconds / 2, _IN_FLIGHT)
            peak = run.peak(peak_seconds, _IN_FLIGHT)
            run.rate = max(1, int(peak / 2))
            run.run(min(2.0, seconds))
            found: Values = {"peak_per_s": peak, "rate_per_s": float(run.rate), "wanted_seconds": seconds}
            found["disk_rested"] = float(rested)
            found |= _measure_at_rate(run, seconds)
            run.close()
    finally:
        subject.stop()
    return found


def _measure_at_rate(run: RateRun, seconds: float) -> Values:
    acks: list[float] = []
    ends: list[float] = []
    quiet_acks: list[float] = []
    quiet_ends: list[float] = []
    stolen = StolenTime()
    with StolenSeconds() as taken:
        for _ in range(_MOST_ROUNDS):
            some_acks, some_ends = run.run(seconds)
            acks += some_acks
            ends += some_ends
            for number, is_quiet in enumerate(taken.quiet(run.begun, int(seconds))):
                if is_quiet:
                    records = slice(number * run.rate, (number + 1) * run.rate)  # those due in that second
                    quiet_acks += some_acks[records]
                    quiet_ends += some_ends[records]
            if len(quiet_acks) >= run.rate * int(seconds):
                break
    return {
        "stolen_share": stolen.share(),
        "seconds": len(acks) / run.rate,
        "quiet_seconds": len(quiet_acks) / run.rate,
        **latency_values(quiet_acks or acks, "produce_"),
        **latency_values(quiet_ends or ends, "end_to_end_"),
        **latency_values(acks, "all_produce_"),
        **latency_values(ends, "all_end_to_end_"),
    }


def is_kept(values: Values) -> bool:
    return (
        values["quiet_seconds"] >= int(values["wanted_seconds"])
        and values["produce_p99_ms"] < PRODUCE_P99_MS
        and values["end_to_end_p99_ms"] < END_TO_END_P99_MS
    )


def describe(mode: str, values: Values) -> str:
    produce = " / ".join(f"{values[f'produce_{name}_ms']:.2f}" for name in ("p50", "p99", "p999"))
    verdict = "kept" if is_kept(values) else "BROKEN"
    if values["quiet_seconds"] < int(values["wanted_seconds"]):
        verdict += ", or nobody can tell on so busy a host"
    if not values["disk_rested"]:
        verdict += " (the disk was still busy with something else when it began)"
    return (
        f"{mode}: {values['rate_per_s']:,.0f}/s, half of {values['peak_per_s']:,.0f}/s; "
        f"produce p50 / p99 / p99.9 {produce} ms (promised p99 < {PRODUCE_P99_MS:g}); "
        f"end to end p99 {values['end_to_end_p99_ms']:.2f} ms (< {END_TO_END_P99_MS:g}): {verdict}\n"
        f"    of {values['seconds']:.0f} seconds these are the {values['quiet_seconds']:.0f} in which the hypervisor "
        f"took no core away; over all of them p99 was {values['all_produce_p99_ms']:.2f} ms and end to end "
        f"{values['all_end_to_end_p99_ms']:.2f} ms, with {values['stolen_share']:.1%} of the busy time taken"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, help="how long at half of the peak  [60, quick: 5]")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seconds = options.seconds or (5.0 if options.quick else 60.0)
    results: dict[str, Values] = {}
    for setup in (THREE, THREE_SYNC):
        mode = FLUSH_SETTINGS[PENSTOCK, setup.flush]
        with (
            tempfile.TemporaryDirectory(prefix="penstock-levels-") as root,
            time_limit(_LIMIT_SECONDS + _MOST_ROUNDS * seconds),
        ):
            results[mode] = measure(setup, Path(root) / setup.flush, seconds, 2.0 if options.quick else 10.0)
        print(describe(mode, results[mode]), file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps(results, indent=1))
    return 0 if all(is_kept(values) for values in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
