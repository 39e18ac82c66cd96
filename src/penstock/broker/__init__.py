"""The broker: routing, one handler file per API, drivers and housekeeping.

Woken by connections, timers and committed metadata. The only room that has met wire, log and the coordinators;
it joins them and keeps no lasting state of its own.
"""
