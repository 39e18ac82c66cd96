"""Consumer groups (KIP-848): the coordinator assigns, members reconcile by heartbeat.

Three epochs tell how far things are. A change of members, subscriptions or topics raises the *group epoch*; an
assignor turns that into a *target assignment* with its epoch; each member moves to it by itself, and its *member
epoch* says which target it has reached. On the way it first gives up what it must (`UNREVOKED_PARTITIONS`), then
gets what others have given up (`UNRELEASED_PARTITIONS` while some have not). So nobody waits for anybody, except for
a partition that another still holds, and no partition has two owners.

All of that lasts: a `ConsumerGroup` is what its records say (`replay`). Timers, running jobs and those who wait for
them are kept beside it and can be lost. Functions here take a turn and a group, and change only the latter.
"""
