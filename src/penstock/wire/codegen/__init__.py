"""From spec files to Python: read (`spec`), write classes (`classes`), decoders and encoders, whole modules.

Runs on a developer's machine and in CI, never in a broker. Same specs in, same bytes out.
"""
