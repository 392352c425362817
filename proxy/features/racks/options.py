"""The options ``--rack`` and ``--rack-clients``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from proxy.text.error_text import reason_of
from proxy.text.options import ConfigError, Given, Section, option
from proxy.text.values import left_out, listed

MAX_RACK_BYTES: Final = 249


def _rack(text: str) -> str:
    """Read the name of a rack. ``@FILE`` is a file whose only line is the name.

    An empty text is the default, no rack. `RackOptions.check` refuses it as a flag or in the environment.
    """
    name, where = text.strip(), ""
    if name.startswith("@"):
        file, where = name[1:], f"the file {name[1:]} "
        if not file:
            raise ValueError("@ needs the name of a file; write @FILE, or the rack's name")
        try:
            lines = Path(file).read_text(encoding="utf-8").strip().splitlines()
        except OSError as error:
            reason = reason_of(error)
            raise ValueError(
                f"{where}can't be read: {reason}; name a readable file, or give the name without @"
            ) from None
        except UnicodeDecodeError:
            raise ValueError(f"{where}is not text in UTF-8; it must have one line, a rack's name") from None
        if len(lines) != 1:
            raise ValueError(f"{where}has {len(lines) or 'no'} lines; it must have one, a rack's name")
        name = lines[0].strip()
    if (size := len(name.encode())) > MAX_RACK_BYTES:
        raise ValueError(
            f"{where or 'the name '}has {size} bytes; give a rack's name of at most {MAX_RACK_BYTES} bytes, "
            "as in the brokers' broker.rack"
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class RackOptions(Section):
    """The options of this feature."""

    removed: ClassVar[Mapping[str, str]] = {
        "rack_reads": "set client.rack in the client, or use --rack-clients; --rack alone counts "
        "(docs/users/upgrade.md)",
    }

    rack: str = option(
        metavar="NAME|@FILE",
        parse=_rack,
        default="",
        help="the zone of this gateway, as in broker.rack of the brokers there (eu-west-1a), or @ and a file "
        "whose only line is that name (@/etc/podinfo/zone); the gateway then counts the bytes to and from "
        "brokers by zone (docs/users/zones.md)",
    )
    """Empty if bytes are not counted by zone."""
    rack_clients: frozenset[str] = option(
        metavar="ID[,ID]",
        parse=lambda text: frozenset(listed(text)),
        parse_transparent=left_out(frozenset[str](), "clients get the brokers' own Metadata"),
        default="",
        help="client ids of consumers that read from the replica in this rack: the gateway names it as "
        "leader in their Metadata; for consumers in which you can't set client.rack, and for brokers without "
        "a replica.selector.class (docs/users/zones.md); not with --transparent",
        needs="rack",
        live=True,
    )

    def check(self, given: Mapping[str, Given]) -> None:
        rack = given["rack"]
        # A file may have an empty rack: ``--show-config`` writes it.
        if not self.rack and rack.source in {"flag", "environment"}:
            raise ConfigError(
                f"{rack.called}: it is empty; give a rack's name as in the brokers' broker.rack, "
                "or leave it out"
            )
