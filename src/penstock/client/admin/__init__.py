"""The admin client: topics, configuration, groups, offsets, log directories.

`admin` is the face; the calls are in `topics`, `configs`, `groups`; `descriptions` is what they answer with.
"""

from penstock.client.admin.admin import Admin
from penstock.client.admin.descriptions import NewTopic

__all__ = ["Admin", "NewTopic"]
