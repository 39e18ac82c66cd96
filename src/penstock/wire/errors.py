"""What can be wrong with bytes. Nothing else leaves a codec: no IndexError, no struct.error."""


class WireError(ValueError):
    """Bytes that are not a message, or a message that has no bytes at the asked version."""


class UnsupportedVersionError(WireError):
    """The message exists, the version does not."""


class UnknownRecordError(WireError):
    """A persisted record of a type or version newer than this release knows. (Never skip one: refuse to start.)"""
