"""Cluster decisions: brokers, topics, placement, configs, producer ids, features.

`decide_*` reads the image and returns records and an answer; nothing here writes. The answer counts once the
records are committed and replayed.
"""
