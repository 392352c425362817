"""The names of Kafka's APIs, and the text of other names. Sans-IO."""

from typing import Final

from proxy.protocol.api import ApiKey

NAMES: Final[dict[int, str]] = {
    key: "".join(word.capitalize() for word in key.name.split("_")) for key in ApiKey
}
"""The name of each API key in Kafka's spelling, such as OffsetForLeaderEpoch."""


def text_of(name: bytes | None) -> str:
    """Return a string of a message as text. "" for null."""
    return (name or b"").decode(errors="replace")


def name_of(api_key: int) -> str:
    """Return an API key's name. Return "unknown" for a negative key, "ApiKey99" for the unknown key 99."""
    return NAMES.get(api_key) or ("unknown" if api_key < 0 else f"ApiKey{api_key}")
