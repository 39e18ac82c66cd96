"""Keys, values and headers as typed columns: what the bytes of a record mean. Wakes only where a format is asked for.

`options` says which format and schema; each format is one module with a codec; `columns` puts them to use on whole
Arrow batches. A schema is text or bytes given with the query; a schema registry's framing is read and written, the
registry itself is not asked.
"""
