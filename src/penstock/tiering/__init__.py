"""Segments to and from object storage. Waiting for its tenant.

Will move closed segments below the local log start offset; reaches storage through ports.
"""
