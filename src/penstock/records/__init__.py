"""Record batches, format version 2: header view, builder, reader, compression, CRC.

Called with bytes, answers with bytes or tuples. Never opens a file, never knows which topic a batch belongs to.
On the produce and fetch paths only the 61-byte header is looked at; batches stay opaque.
"""
