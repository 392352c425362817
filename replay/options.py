"""What the options of the commands of ``fetchgate replay`` share."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from proxy.addresses import MAX_PORT
from proxy.text.options import Section, option, repeated
from proxy.text.units import switch
from proxy.text.values import whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(Section):
    """The base of the options of a command. They are declared like those of ``fetchgate proxy``."""

    description: ClassVar[str]
    examples: ClassVar[str]
    takes: ClassVar[tuple[str, str]]
    """The metavar and the help of the inputs."""

    inputs: tuple[str, ...] = ()


on = partial(option, parse=switch, default="off")
"""Declares a switch: its flag has no value."""


def ports(text: str) -> tuple[int, ...]:
    """Declare --port, with this help."""
    return repeated(metavar="N", parse=whole(1, MAX_PORT), help=text)


def key_logs() -> tuple[str, ...]:
    """Declare --keylog."""
    return repeated(
        metavar="FILE",
        parse=str,
        help="decrypt captured TLS connections with the secrets in this file: a key log (SSLKEYLOGFILE), "
        "or a pcapng that has them (repeatable)",
    )
