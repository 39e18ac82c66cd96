"""Delay levels, schedules, dead letters, webhooks. Waiting for its tenant.

Services that use `client`; they reach the broker over the wire like everybody else.
"""
