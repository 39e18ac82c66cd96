"""An asyncio client on the same wire codec: producer, consumer, admin, and a plain synchronous face.

Talks to brokers over sockets only; imports nothing of the broker.
"""
