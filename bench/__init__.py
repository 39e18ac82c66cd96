"""Benchmarks of parts. They measure; they never pass or fail. `make bench-parts` runs the broker's."""
