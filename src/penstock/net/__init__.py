"""Sockets: frames in, frames out, file ranges out, limits on both.

Woken by the event loop. Knows connections and buffers; never decodes a request body and never decides.
"""
