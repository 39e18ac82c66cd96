"""The classic group protocol: JoinGroup and SyncGroup, with the assignment made by a member, the leader.

Functions here take a turn and a group. What they change at once is what a restart may forget.
"""
