"""What the benchmarks promise is what they fail on."""

from bench import cluster, scale


def test_a_large_image_has_limits() -> None:
    within = {"image_load_s": 4.5, "image_peak_mb": 240.0, "image_failover_decision_s": 1.1}
    kept, words = scale.verdict(within)
    assert kept
    assert words.startswith("kept: image_load_s 4.5 of at most 30, image_peak_mb 240.0 of at most 2000, image_fail")
    kept, words = scale.verdict(within | {"image_failover_decision_s": 3.1})
    assert not kept
    assert words.startswith("BROKEN: ")


def test_replication_lag_has_a_limit() -> None:
    lags = {
        "replication lag, idle p99 ms": 20.0,
        "replication lag at half speed p99 ms": 199,
        "latency p99 ms": 500,
    }
    assert cluster.verdict({"ack": lags, "os": lags})[0]
    kept, words = cluster.verdict({"ack": lags, "os": lags | {"replication lag, idle p99 ms": 200.0}})
    assert (kept, words) == (False, "replication lag p99 at most 200.0 ms (< 200): BROKEN")
