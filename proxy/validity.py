"""Until when a certificate is valid: the one field of it that `ssl` tells only of a peer's. Sans-IO.

Of a certificate (RFC 5280, 4.1) only the way to that field is read, in DER: elements, each of them a tag, a
length and what is in it.
"""

from base64 import b64decode
from datetime import UTC, datetime
from typing import Final

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_VERSION: Final = 0xA0
"""The tag of a field that may be missing."""
_UTC_TIME: Final = 0x17

Element = tuple[int, bytes]
"""A tag, and what is in it."""


def valid_until(pem: str) -> datetime:
    """Tell when the first certificate of a text in PEM ends to be valid.

    Raises:
        ValueError: there is none that can be read.
    """
    begin = pem.index(_BEGIN) + len(_BEGIN)
    der = b64decode(pem[begin : pem.index(_END, begin)])
    try:
        ((_, certificate),) = _elements(der)
        fields = _elements(_elements(certificate)[0][1])
        validity = fields[4 if fields[0][0] == _VERSION else 3][1]
        _, (tag, ends) = _elements(validity)
    except IndexError as error:
        raise ValueError("no certificate") from error
    text = ends.decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year, 4.1.2.5.1
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _elements(der: bytes) -> list[Element]:
    """Read the elements that stand one behind the other."""
    found, at = [], 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size > 0x7F:  # that many bytes of length follow
            at += (size_of := size - 0x80)
            size = int.from_bytes(der[at - size_of : at])
        if at + size > len(der):
            raise ValueError("an element has no end")
        found.append((tag, der[at : at + size]))
        at += size
    return found
