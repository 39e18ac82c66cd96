"""Who may do what: principals, verdicts, quota buckets.

Asked by the gate in front of every request. With security off it allows everything, but it is always asked.
"""
