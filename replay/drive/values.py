"""Parses the values of `drive`'s options.

Each function raises `argparse.ArgumentTypeError` for a wrong value. The message has the value and the
expected format.
"""

import argparse
import base64
import binascii
from collections.abc import Callable

from proxy.addresses import MAX_INT32, Address, whole_number
from proxy.protocol.primitives import UUID_BYTES
from proxy.text.printable import brief
from proxy.text.units import milliseconds, seconds
from proxy.text.units import size as bytes_of
from replay.drive.compare import NOT_ALLOWED, Difference
from replay.drive.mapping import OffsetPolicy
from replay.drive.script import READS
from replay.protocol.names import NAMES


def address(text: str) -> Address:
    """Read HOST:PORT."""
    try:
        return Address.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def admin(text: str) -> Address:
    """Read HOST:PORT, or a port number alone, which means a port of this machine."""
    try:
        return Address.parse(text, default_host="127.0.0.1")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def duration(text: str) -> float:
    """Read a time above 0, in seconds."""
    try:
        found = seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0")
    return found


def wait(text: str) -> int:
    """Read a time in milliseconds, 0 or more."""
    return _int32(text, milliseconds)


def size(text: str) -> int:
    """Read a size in bytes, 0 or more."""
    return _int32(text, bytes_of)


def _int32(text: str, read: Callable[[str], int]) -> int:
    try:
        found = read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if found > MAX_INT32:
        raise argparse.ArgumentTypeError(
            f"{text!r} is too large for a fetch; the largest value is {MAX_INT32}"
        )
    return found


def positive(text: str) -> float:
    """Read a number above 0."""
    try:
        found = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0")
    return found


def speed(text: str) -> float | None:
    """Read a number above 0, or `max`, which becomes None."""
    return None if text == "max" else positive(text)


def count(text: str) -> int:
    """Read an integer, 1 or more."""
    return _whole(text, 1)


def port(text: str) -> int:
    """Read a port."""
    return _whole(text, 1, 0xFFFF)


def _whole(text: str, lowest: int, highest: int = MAX_INT32) -> int:
    if (number := whole_number(text, lowest, highest)) is None:
        raise argparse.ArgumentTypeError(f"{brief(repr(text))} must be an integer from {lowest} to {highest}")
    return number


def offsets(text: str) -> OffsetPolicy:
    """Read the name of a policy for offsets."""
    try:
        return OffsetPolicy(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(OffsetPolicy)}") from None


def apis(text: str) -> list[int]:
    """Read names of APIs, in upper or lower case, and return their keys."""
    known = {name.lower(): key for key, name in NAMES.items()}
    found = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name.lower() not in known:
            writes = ", ".join(sorted(NAMES[key] for key in NAMES.keys() - READS))
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {writes}")
        found.append(known[name.lower()])
    return found


def differences(text: str) -> list[Difference]:
    """Read names of differences that are not allowed."""
    known = {kind.value for kind in NOT_ALLOWED}
    found = [part.strip() for part in text.split(",") if part.strip()]
    for name in found:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(sorted(known))}")
    return [Difference(name) for name in found]


def named_id(text: str) -> tuple[bytes, str]:
    """Read ID=NAME. The id is in Kafka's form (22 characters of base 64), or has 32 hexadecimal digits."""
    id_, equals, name = text.partition("=")
    try:
        found = bytes.fromhex(id_) if len(id_) == 2 * UUID_BYTES else base64.urlsafe_b64decode(id_ + "==")
    except (ValueError, binascii.Error):
        found = b""
    if not equals or not name or len(found) != UUID_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=NAME, as in BsAPo2xmQ2aMgzxXyzGHmA=orders")
    return found, name
