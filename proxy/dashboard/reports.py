"""What a gateway reports of itself, for the table of several gateways. Sans-IO.

A report is made from `/state`, or from `/metrics` where the admin endpoint can't be reached.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from proxy.dashboard.snapshot import MAX_REASONS, NotAGatewayError, Snapshot, number, shown
from proxy.session.decision import Reason

READY: Final = "ready"
_SESSIONS_OFF: Final = "sessions are off: no saving"
_SAMPLE: Final = re.compile(
    r"^(?:fetchgate_|(?=process_))(state|connections|fetch_request_bytes_total|fetch_response_bytes_total"
    r"|probe_bytes_total|passthrough_total|broker_session_refusals_total|sessions_enabled|build_info"
    r"|process_cpu_seconds_total|process_resident_memory_bytes)(?:\{(.*)\})? (\S+)$",
    re.MULTILINE,
)
"""A figure that a report has: its name, its labels and its value."""
_LABEL: Final = re.compile(r'\b(\w++)="([^"]*)"')
"""Each word is tried once only: a response may be one word of millions of letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The state of a gateway at one moment."""

    version: str
    state: str
    wrong: tuple[str, ...]
    """What is wrong, the most important first."""
    uptime: float | None
    """In seconds. None if the gateway does not say."""
    connections: int
    client_bytes: int
    """Bytes of fetches on the client's side since the start."""
    broker_bytes: int
    saved_now: float | None
    """The bytes saved per second at present. None if the gateway does not say."""
    without_slot: int
    """As `Snapshot.without_slot`."""
    cpu_seconds: float
    memory: int
    """In bytes. 0 if unknown."""
    snapshot: Snapshot | None
    """None if the report was made from metrics."""

    @property
    def saved(self) -> int:
        return self.client_bytes - self.broker_bytes


def of_state(snapshot: Snapshot) -> Report:
    """Return the report in a `/state`."""
    recent = snapshot.recent
    return Report(
        version=snapshot.version,
        state=snapshot.state,
        wrong=(*snapshot.reasons, *(() if snapshot.sessions_on else (_SESSIONS_OFF,))),
        uptime=snapshot.uptime,
        connections=snapshot.connections,
        client_bytes=snapshot.client.fetch_bytes,
        broker_bytes=snapshot.broker.fetch_bytes,
        saved_now=recent.now(recent.client_bytes) - recent.now(recent.broker_bytes),
        without_slot=snapshot.without_slot,
        cpu_seconds=snapshot.cpu_seconds,
        memory=snapshot.memory,
        snapshot=snapshot,
    )


def of_metrics(text: str) -> Report:
    """Return the report in a `/metrics`. It does not have the reasons for the state (`reasons_of`).

    Raises:
        NotAGatewayError: the metrics are not a gateway's.
    """
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    try:
        for name, labels, value in _SAMPLE.findall(text):
            texts = {label: shown(text) for label, text in _LABEL.findall(labels)}
            found.setdefault(name, []).append((texts, number(float(value))))
    except ValueError as error:
        raise NotAGatewayError("a value is not a number that can be drawn") from error
    (build, _), *_ = found.get("build_info", [({}, 0.0)])
    states = [labels["state"] for labels, value in found.get("state", []) if value and labels.get("state")]
    if not states:
        raise NotAGatewayError("its metrics have no state")

    def total(*names: str, side: str = "", reason: str = "") -> int:
        samples = [sample for name in names for sample in found.get(name, [])]
        wanted = (side, reason)
        return int(
            sum(
                value
                for labels, value in samples
                if (labels.get("side", ""), labels.get("reason", "")) == wanted
            )
        )

    fetches = ("fetch_request_bytes_total", "fetch_response_bytes_total")
    return Report(
        version=build.get("version", ""),
        state=states[0],
        wrong=() if total("sessions_enabled") else (_SESSIONS_OFF,),
        uptime=None,
        connections=total("connections", side="client"),
        client_bytes=total(*fetches, side="client"),
        broker_bytes=total(*fetches, side="broker") + total("probe_bytes_total"),
        saved_now=None,
        without_slot=sum(int(value) for _, value in found.get("broker_session_refusals_total", []))
        + total("passthrough_total", reason=Reason.NO_BROKER_SLOT),
        cpu_seconds=sum(value for _, value in found.get("process_cpu_seconds_total", [])),
        memory=total("process_resident_memory_bytes"),
        snapshot=None,
    )


def reasons_of(body: bytes) -> tuple[str, ...]:
    """Return the reasons in a `/readyz`.

    Raises:
        NotAGatewayError: the response is not a gateway's.
    """
    try:
        document: Any = json.loads(body)
        return tuple(map(shown, document["reasons"][:MAX_REASONS]))
    except (TypeError, KeyError, ValueError) as error:
        raise NotAGatewayError("this is not a /readyz of fetchgate") from error
