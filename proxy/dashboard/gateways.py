"""The gateways that `fetchgate top` shows: those of ``--admin``, its files, and pods of Kubernetes."""

import json
import ssl
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Self

from proxy.addresses import Address
from proxy.command.config import asked_admin
from proxy.dashboard import pods
from proxy.dashboard.asking import AdminReader, tls_context
from proxy.telemetry.access import read_token
from proxy.text.error_text import reason_of
from proxy.text.options import ConfigError
from proxy.text.printable import brief

STDIN: Final = "-"
_EMPTY: Final = f"it names no gateway; write HOST:PORT, one a line, or {pods.GIVE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway(pods.PodGateway):
    """A gateway in a pod or at an address, and how to ask it."""

    reader: AdminReader | None
    """None if the gateway can't be asked."""

    @classmethod
    def found(cls, one: pods.PodGateway, tls: ssl.SSLContext | None, token: str) -> Self:
        reader = None
        if one.address:
            token = "" if one.metrics else token
            reader = AdminReader(address=one.address, tls=tls if one.secured else None, token=token)
        return cls(**{each.name: getattr(one, each.name) for each in fields(one)}, reader=reader)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateways:
    """What ``--admin`` names."""

    members: tuple[Gateway, ...]
    single: AdminReader | None
    """None if there are several, or a list, which may have one."""
    without: int = 0
    """How many of the listed pods have no gateway."""
    from_stdin: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Gateways":
        """Return the gateways in the options (`proxy.command.config.TOP_OPTIONS`).

        Raises:
            ConfigError: a file can't be used, or would have no effect.
        """
        given = options["admin"]
        lists: list[tuple[str, list[pods.PodGateway]]] = []
        without = 0
        for item in given:
            if isinstance(item, str):
                listed, lacking = _listed(item)
                lists.append((item, listed))
                without += lacking
            else:
                lists.append(("", [_at(*item)]))
        found = _with_own_names(lists)
        secured = [one.address for one in found if one.secured]
        if (ca := options["ca"]) and not secured:
            example = found[0].address or "HOST:PORT"
            raise ConfigError(f"--ca has no effect alone: give --admin https://{example} as well")
        tls = tls_context(ca) if secured else None
        file = options["admin_token_file"]
        token = read_token("--token-file", file) if file else ""
        members = {one.name: Gateway.found(one, tls, token) for one in found}
        return cls(
            members=tuple(members.values()),
            single=None if len(members) > 1 or isinstance(given[0], str) else members[found[0].name].reader,
            without=without,
            from_stdin=STDIN in given,
        )


def _with_own_names(lists: Sequence[tuple[str, list[pods.PodGateway]]]) -> list[pods.PodGateway]:
    """Return the gateways of all lists, each once.

    Pods of several clusters or namespaces may have the same name. Then the name of the list follows it.
    """
    found = [(one, item) for item, listed in lists for one in dict.fromkeys(listed)]
    several = Counter(one.name for one in dict.fromkeys(one for one, _ in found))
    return list(
        dict.fromkeys(
            replace(one, name=f"{one.name} ({item})") if item and several[one.name] > 1 else one
            for one, item in found
        )
    )


def _at(address: Address, secured: bool) -> pods.PodGateway:
    name = f"https://{address}" if secured else str(address)
    return pods.PodGateway(name=name, address=address, secured=secured, command="")


def _listed(item: str) -> tuple[list[pods.PodGateway], int]:
    """Read a list: an address a line, or what ``kubectl get pods -o json`` prints.

    Return the gateways, and how many of the listed pods have none.
    """
    try:
        text = _read(item)
        return pods.gateways(json.loads(text)) if text.lstrip().startswith("{") else (_of_lines(text), 0)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--admin {item}: it is not JSON ({error}); {pods.GIVE}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--admin {item}: it is not text in UTF-8; {_EMPTY.partition('; ')[2]}") from None
    except RecursionError:
        raise ConfigError(f"--admin {item}: it is not a list of pods; {pods.GIVE}") from None
    except ValueError as error:
        raise ConfigError(f"--admin {item}: {brief(str(error))}") from None


def _of_lines(text: str) -> list[pods.PodGateway]:
    # Empty lines, and what follows a ``#``, mean nothing.
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            if address := line.partition("#")[0].strip():
                found.append(_at(*asked_admin(address)))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    if not found:
        raise ValueError(_EMPTY)
    return found


def _read(item: str) -> str:
    if item != STDIN:
        try:
            return Path(item[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{reason_of(error)}; give a file with HOST:PORT, one a line") from None
    if sys.stdin.isatty():
        raise ValueError(
            "standard input is the terminal; pipe a list into it: "
            "kubectl get pods -o json | fetchgate top --admin -"
        )
    return sys.stdin.buffer.read().decode()
