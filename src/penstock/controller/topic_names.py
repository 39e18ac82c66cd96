"""Which names a topic may have. The rules are Kafka's, because a name becomes a directory and a metric."""

import re

from penstock.metadata.image import METADATA_TOPIC, MetadataImage, collision_key
from penstock.model.errors import ErrorCode, Refusal

MAX_NAME_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> Refusal | None:
    """Why this cannot be a topic's name, or None."""
    reason = None
    if not name:
        reason = "it is empty"
    elif name in (".", ".."):
        reason = "it is '.' or '..'"
    elif len(name) > MAX_NAME_LENGTH:
        reason = f"it has {len(name)} characters, {MAX_NAME_LENGTH} are allowed"
    elif not _LEGAL.fullmatch(name):
        reason = "only letters, digits, '.', '_' and '-' (ASCII) are allowed"
    if reason is None:
        return None
    shown = name if len(name) <= 64 else name[:61] + "..."
    return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {shown!r} is not valid: {reason}")


def check_reserved(name: str) -> Refusal | None:
    """The metadata log is no topic, but has the directory of one: replicas of it would be put in its place."""
    if name != METADATA_TOPIC:
        return None
    return Refusal(ErrorCode.INVALID_REQUEST, f"topic name {name!r} is that of the cluster's own metadata log")


def check_collision(image: MetadataImage, name: str) -> Refusal | None:
    """`a.b` and `a_b` would be one metric; so the second of them is refused."""
    key = collision_key(name)
    taken = image.collision_names.get(key) if key is not None else None
    return None if taken is None or taken == name else collision_refusal(name, taken)


def collision_refusal(name: str, taken: str) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"topic name {name!r} collides with {taken!r}: they differ only in '.' and '_'",
    )
