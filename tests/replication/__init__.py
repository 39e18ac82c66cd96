"""Replicated partitions: leader and follower state, a model cluster, brokers joined by fakes."""
