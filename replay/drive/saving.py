"""The measured saving: compares a gateway's counters with the bytes of the same requests sent directly."""

import asyncio
import re
import urllib.request
from dataclasses import dataclass, fields
from http.client import HTTPException
from typing import Final, Self, TypedDict
from urllib.error import HTTPError

from proxy.addresses import Address
from proxy.protocol.api import ApiKey
from replay.drive.tally import DriveTotals
from replay.drive.wire import TargetError, reason_of

ASK_SECONDS: Final = 5.0
SETTLE_SECONDS: Final = 0.2
"""The counters are final if they have not changed for this time."""
_MAX_SETTLES: Final = 25

_REMEDY: Final = "--against reads the counters of the gateway's admin endpoint: give its address with --admin"
_REQUESTS: Final = "fetchgate_fetch_request_bytes_total"
_RESPONSES: Final = "fetchgate_fetch_response_bytes_total"
_RECORDS: Final = "fetchgate_fetch_record_bytes_total"
_PROBES: Final = "fetchgate_probe_bytes_total"
_SAMPLE: Final = re.compile(r'^(fetchgate_\w+)(?:\{side="(\w+)"\})? ([\d.e+]+)$', re.MULTILINE)
"""A sample that has no label, or only the label `side`: its name, its side and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayCounters:
    """Fetch bytes that a gateway counted."""

    client_request: int = 0
    client_response: int = 0
    broker_request: int = 0
    broker_response: int = 0
    broker_records: int = 0
    broker_probes: int = 0
    """Bytes of the gateway's own ApiVersions requests. 0 for a gateway that does not count them."""

    def __sub__(self, before: Self) -> "GatewayCounters":
        names = [field.name for field in fields(self)]
        return GatewayCounters(**{name: getattr(self, name) - getattr(before, name) for name in names})


class SavingFigures(TypedDict):
    """Fetch bytes between gateway and broker, and the bytes of the same fetches without a gateway."""

    gateway_request_bytes: int
    gateway_response_bytes: int
    gateway_record_bytes: int
    direct_request_bytes: int
    direct_response_bytes: int
    direct_record_bytes: int
    saved_bytes: int
    """Negative if the gateway cost more than it saved."""
    saved_ratio: float
    """The saved share of the direct bytes."""
    other_clients: bool
    """Whether the gateway counted other fetch bytes than this run exchanged with it. It has then served other
    clients, whose traffic its figures include, or responses of this run were lost."""


def read_counters(exposition: str) -> GatewayCounters:
    """Read the counters out of a gateway's /metrics.

    Raises:
        ValueError: the text is not from a gateway.
    """
    found = {(name, side): int(float(value)) for name, side, value in _SAMPLE.findall(exposition)}
    try:
        return GatewayCounters(
            client_request=found[_REQUESTS, "client"],
            client_response=found[_RESPONSES, "client"],
            broker_request=found[_REQUESTS, "broker"],
            broker_response=found[_RESPONSES, "broker"],
            broker_records=found[_RECORDS, "broker"],
            broker_probes=found.get((_PROBES, ""), 0),
        )
    except KeyError as error:
        raise ValueError(f"no {error.args[0][0]} in its metrics") from None


async def scrape(admin: Address) -> GatewayCounters:
    """Ask a gateway for its counters.

    Raises:
        TargetError: its admin endpoint does not respond as a gateway's does.
    """
    try:
        return read_counters(await asyncio.to_thread(_get, f"http://{admin}/metrics"))
    except HTTPException:
        reason = "does not respond as an admin endpoint does"
    except HTTPError as error:
        reason = str(error)
    except (OSError, ValueError) as error:
        reason = reason_of(getattr(error, "reason", None) or error)
    raise TargetError(f"--admin {admin}: {reason}; {_REMEDY}")


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=ASK_SECONDS) as response:  # noqa: S310 - built from http:// above
        content: bytes = response.read()
    return content.decode(errors="replace")


async def settled(admin: Address) -> GatewayCounters:
    """Ask a gateway for its counters until they no longer change, or for some seconds.

    After its clients have left, a gateway still closes its sessions.

    Raises:
        TargetError: as in `scrape`.
    """
    counters = await scrape(admin)
    for _ in range(_MAX_SETTLES):
        await asyncio.sleep(SETTLE_SECONDS)
        before, counters = counters, await scrape(admin)
        if counters == before:
            break
    return counters


def measured(counted: GatewayCounters, through: DriveTotals, direct: DriveTotals) -> SavingFigures:
    """Compare a gateway's counters of a run with the bytes that the run sent through it and directly."""
    own, other = through.of(ApiKey.FETCH), direct.of(ApiKey.FETCH)
    direct_bytes = other.request_bytes + other.response_bytes
    saved = direct_bytes - counted.broker_request - counted.broker_response - counted.broker_probes
    own_bytes = own.request_bytes, own.response_bytes
    return {
        "gateway_request_bytes": counted.broker_request,
        "gateway_response_bytes": counted.broker_response,
        "gateway_record_bytes": counted.broker_records,
        "direct_request_bytes": other.request_bytes,
        "direct_response_bytes": other.response_bytes,
        "direct_record_bytes": other.record_bytes,
        "saved_bytes": saved,
        "saved_ratio": saved / direct_bytes if direct_bytes else 0.0,
        "other_clients": (counted.client_request, counted.client_response) != own_bytes,
    }
