"""What Kafka's tools print, as they print it."""

import pytest

from penstock.bench.loads.java_tools import ToolFailed, parse_consumed, parse_end_to_end, parse_produced

PRODUCED = """Warmup first 10000 records. Steady state results will print after the complete test summary.
19345 records sent, 3861.3 records/sec (3.68 MB/sec), 3278.9 ms avg latency, 3814.0 ms max latency.
100000 records sent, 10586.491637 records/sec (10.10 MB/sec), 2131.80 ms avg latency, 3843.00 ms max latency, \
2202 ms 50th, 3698 ms 95th, 3804 ms 99th, 3838 ms 99.9th.
90000 steady state records sent, 11522.212265 records/sec (10.99 MB/sec), 2116.94 ms avg latency, 3843.00 ms max \
latency, 2139 ms 50th, 3704 ms 95th, 3805 ms 99th, 3839 ms 99.9th.
"""
CONSUMED = """start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, \
fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
2026-01-02 03:01:04:906, 2026-01-02 03:01:12:261, 95.3674, 12.9663, 100000, 13596.1931, 5151, 2204, 43.2702, 45372.05
"""
END_TO_END = """0\t117.315015
Avg latency: 4.8408 ms
Percentiles: 50th = 2, 99th = 35, 99.9th = 117
"""


def test_the_producer_tool_is_read_after_its_warm_up():
    found = parse_produced(PRODUCED)
    assert (found.records, found.records_per_s) == (90_000, 11522.212265)
    assert found.latencies_ms == (2139.0, 3805.0, 3839.0)


def test_the_consumer_tool_is_read_without_the_time_to_join():
    found = parse_consumed(CONSUMED)
    assert (found.records, found.records_per_s, found.fetch_records_per_s) == (100_000, 13596.1931, 45372.05)


def test_the_end_to_end_tool():
    assert parse_end_to_end(END_TO_END) == (2.0, 35.0, 117.0)


@pytest.mark.parametrize("parse", [parse_produced, parse_consumed, parse_end_to_end])
def test_a_tool_without_a_summary_has_failed(parse):
    with pytest.raises(ToolFailed, match="printed no summary: oh"):
        parse("oh")
