"""What benchmarks print gets into pages, at its place and no other."""

import sys

from bench import page


def test_each_benchmark_has_its_place(tmp_path, monkeypatch):
    printed = {"bench.cores": "twice\n", "bench.scale": "", "bench.levels": "broken\n"}
    monkeypatch.setattr(page, "run", lambda words: (1 if words[0] == "bench.levels" else 0, printed[words[0]]))
    there = tmp_path / "page.md"
    there.write_text("# Figures\n\n<!-- bench.scale: begin -->\n\nold\n\n<!-- bench.scale: end -->\n")
    monkeypatch.setattr(sys, "argv", ["page", str(there), "cores --rounds 2", "scale", "levels"])
    assert page.main() == 1
    once = there.read_text()
    assert "old" in once  # what printed nothing changes nothing
    assert "`python -m bench.cores --rounds 2`" in once
    assert "```text\ntwice\n```" in once
    assert "```text\nbroken\n```" in once
    printed["bench.cores"] = "thrice\n"
    page.main()
    assert "twice" not in there.read_text()
    assert there.read_text().count("bench.cores: begin") == 1


def test_a_benchmark_that_does_not_exist_fails(tmp_path, monkeypatch, capfd):
    there = tmp_path / "page.md"
    there.write_text("as it was")
    monkeypatch.setattr(sys, "argv", ["page", str(there), "nothing_like_it"])
    assert page.main() == 1
    assert there.read_text() == "as it was"
    assert "printed nothing" in capfd.readouterr().err


def test_what_one_broker_costs_is_told_in_words(tmp_path, monkeypatch):
    """The real benchmark, small, as `make bench-page` runs it."""
    there = tmp_path / "page.md"
    there.write_text("# Costs\n")
    monkeypatch.setattr(sys, "argv", ["page", str(there), "broker --gigabytes 0.01 --requests 50 --partitions 1000"])
    assert page.main() == 0
    told = there.read_text()
    assert "flush.mode=os: CPU-s per GB" in told
    assert "creating 1,000 partitions, s" in told
    assert "  [0.5]" in told
