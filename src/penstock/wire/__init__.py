"""The Kafka protocol as bytes: specs, generated codecs, headers and framing.

Called with a buffer and a version. Knows how every message is laid out and nothing about what it means.
`spec/` holds the facts, `generate.py` turns them into the flat functions under `generated/`.
"""
