"""How a response may differ from the captured one, and which of these differences are allowed."""

from enum import StrEnum
from typing import Final


class Difference(StrEnum):
    """How a response differs from the captured one."""

    ERROR = "another error"
    """An error that the captured response does not have."""
    DENIED = "missing ACL"
    """The target refuses an API or a topic to the user, unlike the captured cluster."""
    MISSING = "missing"
    """A topic, partition or API that the captured response has."""
    VERSION = "version not supported"
    """The target does not support the version of a captured request, so the request is not sent."""
    NARROWER = "fewer versions"
    """ApiVersions does not offer a version that a captured request has."""
    FEWER = "fewer record bytes"
    FIRST = "another first offset"
    """The first batch of a fetched partition has another base offset."""
    ABORTED = "other aborted transactions"
    """Fetch responses have them only for read_committed, so this may be another isolation level."""
    UNREADABLE = "unreadable"
    """The response does not parse, unlike the captured one."""
    RECOVERED = "no error any more"
    ADDED = "added"
    UNUSED = "fewer versions, not used"
    """ApiVersions offers fewer versions of an API, but all that captured requests have."""
    WIDER = "more versions"
    MORE = "more record bytes"
    FULL = "fewer record bytes, response full"
    """The captured records are not in the response, because other records fill it up to max_bytes."""
    CONTENTS = "other record contents"
    """The first batch has another CRC: other contents, timestamps, producer or compression."""
    OFFSETS = "other offsets"
    """High watermarks (Fetch), offsets of appended records (Produce), offsets in ListOffsets."""
    SIZE = "another size"


NOT_ALLOWED: Final = frozenset(
    {
        Difference.ERROR,
        Difference.DENIED,
        Difference.MISSING,
        Difference.VERSION,
        Difference.NARROWER,
        Difference.FEWER,
        Difference.FIRST,
        Difference.ABORTED,
        Difference.UNREADABLE,
    }
)
