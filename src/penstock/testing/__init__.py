"""Brokers for tests: in-process, ready in milliseconds, on ports the system picks.

Used by people's own test suites through `penstock.testing.Broker` and the pytest plugin.
"""
