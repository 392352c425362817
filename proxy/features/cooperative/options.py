"""The options ``--cooperative``, ``--cooperative-lanes`` and ``--cooperative-slots``."""

# ruff: noqa: RUF009 - `option` declares a field, as dataclasses.field does, which it calls

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from proxy.text.options import ConfigError, Given, Section, option
from proxy.text.values import listed

if TYPE_CHECKING:
    from proxy.features.cooperative.declared import NamedLane

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""The names that topics can have."""
_READ_RECORDS: Final = ("cramjam", "google_crc32c", "lz4", "zstandard")
"""The modules that this folder imports from the optional packages (the extra `cooperative`)."""


def _groups(text: str) -> frozenset[str]:
    groups = frozenset(listed(text))
    if any(set(group) & set("*?[") for group in groups):
        raise ValueError(f"{text!r} is a pattern; name each group, since its applications must support this")
    return groups


def _topic(text: str) -> str:
    if text and not _TOPIC.fullmatch(text):
        raise ValueError(f"{text!r} is not the name of a topic; example: fetchgate.slots")
    return text


def _lanes(text: str) -> "Mapping[str, NamedLane]":
    if not text:
        return {}
    # This module imports numpy, which takes long to load.
    from proxy.features.cooperative.declared import named_lanes  # noqa: PLC0415

    return named_lanes(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CooperativeOptions(Section):
    """The options of this feature."""

    cooperative: frozenset[str] = option(
        metavar="GROUP[,GROUP]",
        parse=_groups,
        default="",
        help="consumer groups whose members may share a partition: each member gets the records of its key "
        "ranges and commits for them (docs/users/cooperative.md); each member needs a client.id of its own "
        "that begins with the group's name and a dot; needs the packages of '.[cooperative]'",
    )
    """The names of the cooperative groups. If there are none, no client.id gives a client a lane."""
    cooperative_lanes: "Mapping[str, NamedLane]" = option(
        metavar="JSON",
        parse=_lanes,
        default="",
        help="named lanes: a client is in lane NAME if its client.id ends with .lane-NAME; for each group, "
        "lane, topic and partition give the key ranges, as in "
        '{"billing": {"blue": {"orders": {"0": [[0, 2147483647]]}}}}; '
        "tables in the file of --config are easier to write (docs/users/cooperative.md)",
        needs="cooperative",
        table=True,
        live=True,
    )
    """The lanes of clients that have a fixed name, by that name."""
    cooperative_slots: str = option(
        metavar="TOPIC",
        parse=_topic,
        default="",
        help="the topic for the progress of members that share partitions: each member commits its progress "
        "as the offset of one partition of this topic (its slot); nothing is written to the topic; if "
        "brokers have ACLs, clients need READ on it (docs/users/cooperative.md; default: __consumer_offsets)",
        needs="cooperative",
    )
    """The topic of slots (see `slots`). Empty for `SLOTS` of `group`."""

    def check(self, given: Mapping[str, Given]) -> None:  # noqa: ARG002 - the values say enough
        if not self.cooperative:
            return
        if missing := [name for name in _READ_RECORDS if find_spec(name) is None]:
            # It is needed for this message alone.
            from proxy.text.environment import environment  # noqa: PLC0415

            raise ConfigError(
                f"--cooperative needs {', '.join(missing)}, not installed; in fetchgate's source folder: "
                f"{environment().command_for_extra('cooperative')}"
            )
        for name, lane in self.cooperative_lanes.items():
            if (group := lane.group.decode()) not in self.cooperative:
                known = ", ".join(sorted(self.cooperative))
                raise ConfigError(
                    f"lane {name} is of group {group}, which --cooperative does not name; it names {known}"
                )
