"""Composition of a process: configuration, data directories, roles, signals.

What `penstock up` and the in-process test broker run. Joins parts; decides nothing about data.
"""
