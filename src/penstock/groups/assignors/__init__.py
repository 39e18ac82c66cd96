"""Server-side assignors (KIP-848): who is to have which partition, from subscriptions and the last target.

Pure: a `GroupSpec` goes in, a target per member comes out. They run on the loop for small groups and in the pool for
large ones, so they never look at live state.
"""

from penstock.groups.assignors.range import assign_range
from penstock.groups.assignors.spec import Assignor
from penstock.groups.assignors.uniform import assign_uniform

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
