"""Each fault that can be put into a healthy log is found and named, and nothing is found in a healthy one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.audit import AuditCounters, AuditOptions
from penstock.client.producer.batch import ProducerBatch
from penstock.pipeline.audit_counters import decide_counters, latency_percentiles, replay_counters
from penstock.pipeline.audit_findings import Finding, passed
from penstock.pipeline.audit_runs import (
    SEQUENCE_MODULUS,
    PartitionFacts,
    ProducerRuns,
    Run,
    decide_offsets,
    decide_sequences,
    walk,
)

Spans = list[tuple[int, int]]  # first number, length: batches in log order
lengths = st.lists(st.integers(1, 20), min_size=2, max_size=30)
DAY_MS = 86_400_000


def batches(sizes: list[int], first: int = 0) -> Spans:
    spans = []
    for size in sizes:
        spans.append((first, size))
        first += size
    return spans


def runs_of(spans: Spans, modulus: int | None = None) -> list[Run]:
    """What Spark makes of batches: stretches without a jump."""
    runs: list[Run] = []
    offset = 0
    for first, size in spans:
        number = first if modulus is None else first % modulus
        if runs:
            last = runs[-1]
            expected = last.first + last.length
            if number == (expected if modulus is None else expected % modulus):
                runs[-1] = last._replace(length=last.length + size, end_offset=offset + size)
                offset += size
                continue
        runs.append(Run(number, size, offset, offset + size))
        offset += size
    return runs


def kinds(findings: list[Finding]) -> set[str]:
    return {finding.kind for finding in findings}


@settings(max_examples=80, deadline=None)
@given(lengths, st.data())
def test_every_fault_of_offsets_is_named(sizes: list[int], data: st.DataObject) -> None:
    spans = batches(sizes)
    end = sum(sizes)
    facts = PartitionFacts("orders", 3, 0, end, 0)
    assert decide_offsets(facts, runs_of(spans)) == []
    at = data.draw(st.integers(0, len(spans) - 1), "at")
    cut = spans[:at] + spans[at + 1 :]
    [finding] = decide_offsets(facts, runs_of(cut))
    assert finding.kind == ("cut_off" if at == len(spans) - 1 else "gap")
    assert (finding.first_offset, finding.records) == spans[at]
    # The same hole where records may go: nothing is lost.
    if finding.kind == "gap":
        assert kinds(decide_offsets(facts._replace(compacted=True), runs_of(cut))) == {"compacted"}
    again = data.draw(st.integers(0, at), "again")
    twice = [*spans[: at + 1], spans[again], *spans[at + 1 :]]
    [finding] = decide_offsets(facts, runs_of(twice))
    assert finding.kind == "duplicate_offsets"
    assert (finding.first_offset, finding.records) == spans[again]


@settings(max_examples=60, deadline=None)
@given(lengths, st.data())
def test_batches_in_another_order_are_disorder_not_loss(sizes: list[int], data: st.DataObject) -> None:
    spans = batches(sizes)
    at = data.draw(st.integers(0, len(spans) - 2), "at")
    moved = spans[:at] + spans[at + 1 :] + [spans[at]]
    facts = PartitionFacts("orders", 0, 0, sum(sizes), 0)
    assert kinds(decide_offsets(facts, runs_of(moved))) == {"disorder"}


@settings(max_examples=60, deadline=None)
@given(lengths, st.data())
def test_what_retention_took_is_a_hole_and_passes(sizes: list[int], data: st.DataObject) -> None:
    spans = batches(sizes)
    kept = data.draw(st.integers(1, len(spans) - 1), "kept")
    log_start = data.draw(st.integers(spans[kept][0], sum(spans[kept]) - 1), "log start")  # may cut a batch
    # Retention may also go on while the audit runs: batches seen at first are gone in the end.
    seen = data.draw(st.integers(0, kept), "seen")
    facts = PartitionFacts("orders", 0, 0, sum(sizes), log_start)
    findings = decide_offsets(facts, runs_of(spans[seen:]))
    assert passed(findings)
    assert kinds(findings) == ({"retention_hole"} if log_start else set())


@settings(max_examples=80, deadline=None)
@given(lengths, st.sampled_from([0, SEQUENCE_MODULUS - 7, SEQUENCE_MODULUS - 150]), st.data())
def test_every_fault_of_sequences_is_named(sizes: list[int], first: int, data: st.DataObject) -> None:
    """Also where the numbers wrap."""
    spans = batches(sizes, first)
    facts = PartitionFacts("orders", 1, 0, sum(sizes), 0) if not first else PartitionFacts("orders", 1, 5, 9, 5)

    def decide(content: Spans) -> list[Finding]:
        runs = runs_of(content, SEQUENCE_MODULUS)
        found = decide_sequences(facts, ProducerRuns(7, 2, runs), DAY_MS)
        return [finding for finding in found if finding.kind != "sequence_before_range"]

    assert decide(spans) == []
    at = data.draw(st.integers(1, len(spans) - 2) if len(spans) > 2 else st.just(0), "at")
    findings = decide(spans[:at] + spans[at + 1 :])
    if at:
        assert kinds(findings) == {"sequence_gap"}
        assert findings[0].records == spans[at][1]
        assert f"{spans[at][0] % SEQUENCE_MODULUS}" in findings[0].detail
    again = data.draw(st.integers(0, at), "again")
    assert kinds(decide([*spans[: at + 1], spans[again], *spans[at + 1 :]])) == {"sequence_duplicate"}
    if at:
        assert kinds(decide(spans[:at] + spans[at + 1 :] + [spans[at]])) == {"sequence_disorder"}


def test_where_a_sequence_begins() -> None:
    late = ProducerRuns(7, 0, [Run(5, 10, 0, 10)])
    whole = PartitionFacts("t", 0, 0, 10, 0)
    assert kinds(decide_sequences(whole, late, DAY_MS)) == {"sequence_start"}
    # With retention nobody knows; but a raised epoch begins at 0 wherever it is.
    part = whole._replace(start_offset=100, log_start_offset=100, end_offset=110)
    assert kinds(decide_sequences(part, late, DAY_MS)) == {"sequence_before_range"}
    assert kinds(decide_sequences(part, late._replace(follows_epoch=True), DAY_MS)) == {"sequence_start"}


def test_a_producer_that_was_forgotten_may_go_on_anywhere() -> None:
    runs = [Run(0, 10, 0, 10, 0, 1_000), Run(15, 5, 10, 15, 1_000 + DAY_MS, 2_000 + DAY_MS)]
    facts = PartitionFacts("t", 0, 0, 15, 0)
    assert kinds(decide_sequences(facts, ProducerRuns(7, 0, runs), DAY_MS)) == {"sequence_expired"}
    assert kinds(decide_sequences(facts, ProducerRuns(7, 0, runs), DAY_MS + 1)) == {"sequence_gap"}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)), max_size=15))
def test_walking_accounts_for_every_number(spans: Spans) -> None:
    """Whatever is in the log: each number is missing, or there once, or there again."""
    result = walk([Run(first, length, 0, 0) for first, length in spans], 0)
    times = [0] * 60
    for first, length in spans:
        for number in range(first, first + length):
            times[number] += 1
    highest = max((first + length for first, length in spans), default=0)
    missing = {n for jump in result.missing for n in range(jump.first, jump.end)}
    assert missing == {n for n in range(highest) if not times[n]}
    assert sum(j.end - j.first for j in result.repeated) == sum(max(0, n - 1) for n in times)


# -- counters -----------------------------------------------------------------------------------------------------


def batch(count: int, window: int, producer_id: int = 9) -> ProducerBatch:
    made = ProducerBatch("orders", 0, 0.0, 1.0)
    made.futures = [None] * count  # type: ignore[list-item]
    made.timestamps = [window * 1_000]
    made.producer_id, made.epoch, made.attempts = producer_id, 0, 1
    return made


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 3), st.sampled_from(["ack", "fail", "open"])), min_size=1),
    st.integers(0, 3),
    st.data(),
)
def test_counters_find_what_is_lost_and_what_is_too_much(
    sent: list[tuple[int, int, str]], tells: int, data: st.DataObject
) -> None:
    counters = AuditCounters(AuditOptions(window_ms=1_000), "billing", "cafe", 0)
    records: list[tuple[bytes | None, bytes | None]] = []
    acknowledged: dict[int, int] = {}
    produced: dict[int, int] = {}
    for number, (count, window, fate) in enumerate(sent):
        one = batch(count, window)
        counters.sent(one)
        produced[window] = produced.get(window, 0) + count
        if fate == "ack":
            counters.acknowledged(one, 0.003)
            acknowledged[window] = acknowledged.get(window, 0) + count
        elif fate == "fail":
            counters.failed(one)
        if number < tells:
            records += [(name.encode(), value) for name, value in counters.take_changed(10**9 * (number + 1))]
    for name, value in [*counters.take_changed(10**10), counters.life(0, closed=True)]:
        records.append((name.encode(), value))
    told = replay_counters(records)
    facts = {("orders", 0): PartitionFacts("orders", 0, 0, 10, 0)}
    window = data.draw(st.sampled_from(sorted(produced)), "window")

    def judge(change: int, base: dict[int, int]) -> set[str]:
        logged = {("orders", 0, 9, 0, w * 1_000): count for w, count in base.items()}
        logged["orders", 0, 9, 0, window * 1_000] = base.get(window, 0) + change
        return kinds(decide_counters(told, logged, facts)) - {"delivery_failed"}

    assert judge(0, {**dict.fromkeys(produced, 0), **acknowledged}) == set()
    assert judge(0, produced) == set()
    assert judge(1, produced) == {"counter_surplus"}
    if acknowledged.get(window):
        assert judge(-1, acknowledged) == {"counter_loss"}


def test_counters_that_are_missing_or_go_on_are_said() -> None:
    counters = AuditCounters(AuditOptions(window_ms=1_000), "billing", "cafe", 0)
    counters.sent(batch(3, 1))
    counters.sent(batch(3, 2))
    told = [(name.encode(), value) for name, value in counters.take_changed(0)][1:]
    name, value = counters.life(0, closed=False)
    found = replay_counters([*told, (name.encode(), value), (b"x", b"not json"), (None, b"")])
    assert found.malformed == 2
    facts = {("orders", 0): PartitionFacts("orders", 0, 0, 10, 0)}
    logged = {("orders", 0, 9, 0, 2_000): 500}  # too much, but it has not told its last
    assert kinds(decide_counters(found, logged, facts)) == {"counters_incomplete", "producer_running"}


def test_percentiles_of_buckets() -> None:
    assert latency_percentiles([0, 0], [0.5]) is None
    assert latency_percentiles([50, 0, 49, 1], [0.5, 0.99, 1.0]) == {"p50": 1.0, "p99": 4.0, "p100": 8.0}
