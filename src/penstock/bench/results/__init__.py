"""From measurements to pages: statistics, the report and its file, tables, charts, facts of the machine."""
