"""The SEMPv2 error codes that this project encounters; stable, unlike the texts that come with them."""

from enum import IntEnum


class SempCode(IntEnum):
    """`meta.error.code` of an answer; its name is `meta.error.status`."""

    NOT_FOUND = 6
    """The object, or one above it, is missing."""
    ALREADY_EXISTS = 10
    INVALID_PARAMETER = 11
    NOT_SUPPORTED = 14
    PARSE_ERROR = 27
    UNAUTHORIZED = 72
    """The administrator's access level is too low."""
    NOT_ALLOWED = 89
    """Wrong state: something else still uses the object, or it has to be disabled first."""
    MISSING_PARAMETER = 228
    """An attribute is required, or required together with one that was given."""
    CONFIGDB_OBJECT_DEPENDENCY = 490
    """Another object refers to this one."""
