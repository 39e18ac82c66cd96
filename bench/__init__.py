"""Benchmarks. They measure; they never pass or fail. `make bench` runs the broker's."""
