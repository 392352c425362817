"""Runs two cores in lock-step, with and without the fast path. Their outputs must be the same."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from proxy.core.budget import RequestBudget
from proxy.core.connection import Connection
from proxy.core.eligibility import BrokerVersions, SessionLimits
from proxy.core.events import Event, Tally
from proxy.core.histograms import Measured
from proxy.protocol.primitives import Buffer
from tests.connections import connect

ASKED = (
    *("fault", "wire", "reads_client", "done", "begun", "busy", "buffered", "client_id"),
    *("fetch_version", "decided", "session_id", "session_epoch", "session_partitions", "tally"),
)
"""The attributes of a core that the shell reads after each step."""
COUNTS = ("begun", "tally")
"""Attributes that make the core count the traffic of the fast path when read. The shell reads them rarely."""

_OTHERS: dict[int, tuple[SessionLimits, SessionLimits]] = {}
"""By the id of a `SessionLimits` object: this object, which the cores with the fast path use, and a second
one for the cores without it."""
_VERSIONS: dict[int, tuple[BrokerVersions, BrokerVersions]] = {}


class Twin:
    """A replacement for `Connection` in tests.

    It gives two cores the same bytes, and compares their outputs at each step.

    Args:
        sessions: the limits of sessions, as for `Connection`. `options` are those of `Connection` too.
    """

    asked: tuple[str, ...] = ASKED
    """The names of the attributes of both cores that are compared after each step."""

    def __init__(self, *, sessions: SessionLimits, measured: Measured | None = None, **options: Any) -> None:
        self._sessions = sessions
        _, self._others = _OTHERS.setdefault(id(sessions), (sessions, SessionLimits(max_sessions=0)))
        self.passed = 0
        """The number of reads that the fast path handled completely."""
        self._measured = measured or Measured(), Measured()
        self._mirror()
        self._on = connect(sessions=sessions, measured=self._measured[0], **options)
        if (budget := options.get("request_budget")) is not None:
            options["request_budget"] = RequestBudget(budget.limit)
            options["request_budget"].total = budget.total
        if (versions := options.get("versions")) is not None:
            _, options["versions"] = _VERSIONS.setdefault(id(versions), (versions, BrokerVersions()))
        self._off = connect(sessions=self._others, measured=self._measured[1], fast=False, **options)
        self._to_client: list[Buffer] = []
        self._to_broker: list[Buffer] = []
        self._events: list[Event] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._on, name)

    def __repr__(self) -> str:
        return repr(self._on)

    @property
    def cores(self) -> tuple[Connection, Connection]:
        """Return both cores: with the fast path, and without it."""
        return self._on, self._off

    @property
    def tally(self) -> Tally:
        _same("tally", *self.cores)
        return self._on.tally

    def receive_client(self, data: bytes, now: float) -> None:
        """Process bytes from the client as the link does: the fast path gets them first."""
        self._mirror()
        done, out = self._on.fast_path.request(data, now)
        self.passed += done == len(data) > 0
        self._to_broker += [out] if out else []
        if done < len(data) or not data:
            self._on.receive_client(data[done:], now)
        self._off.receive_client(data, now)
        self._go_on(now)
        self._compare(to_broker=out)

    def _go_on(self, now: float) -> None:
        """Run the work that a core left for the next turn of the event loop."""
        for core in self.cores:
            while core.state.goes_on:
                core.go_on(now)

    def receive_broker(self, data: bytes, now: float) -> None:
        """Process bytes from the broker as the link does: the fast path gets them first."""
        self._mirror()
        done, out = self._on.fast_path.response(data, now, now)
        self.passed += done == len(data) > 0
        self._to_client += [out] if out else []
        if done < len(data):
            self._on.receive_broker(data[done:], now)
        self._off.receive_broker(data, now)
        self._go_on(now)
        self._compare(to_client=out)

    def close_session(self, now: float) -> None:
        self._on.close_session(now)
        self._off.close_session(now)
        self._compare()

    def tick(self, now: float) -> None:
        self._on.tick(now)
        self._off.tick(now)
        self._compare()

    def client_ended(self) -> None:
        self._on.client_ended()
        self._off.client_ended()
        self._compare()

    def broker_ended(self) -> None:
        self._on.broker_ended()
        self._off.broker_ended()
        self._compare()

    def brokers_opened(self, node_ids: frozenset[int]) -> None:
        self._on.brokers_opened(node_ids)
        self._off.brokers_opened(node_ids)
        self._go_on(0.0)
        self._compare()

    def ended(self) -> None:
        self._on.ended()
        self._off.ended()
        self._compare()

    def drain_client(self) -> list[Buffer]:
        due, self._to_client = self._to_client, []
        return due

    def drain_broker(self) -> list[Buffer]:
        due, self._to_broker = self._to_broker, []
        return due

    def drain_events(self) -> list[Event]:
        due, self._events = self._events, []
        return due

    def _mirror(self) -> None:
        for name in SessionLimits.__slots__:
            if name != "used":
                setattr(self._others, name, getattr(self._sessions, name))

    def _compare(self, *, to_client: bytes = b"", to_broker: bytes = b"") -> None:
        on, off = self._on, self._off
        client, broker = on.drain_client(), on.drain_broker()
        self._compare_client(to_client + _joined(client), _joined(off.drain_client()))
        assert to_broker + _joined(broker) == _joined(off.drain_broker())
        self._to_client += client
        self._to_broker += broker
        events = self._on.drain_events()
        assert events == self._off.drain_events()
        self._events += events
        assert self._sessions.used == self._others.used
        for name in self.asked:
            _same(name, on, off)
        assert (on.state.phase, on.state.stream) == (off.state.phase, off.state.stream)

    def _compare_client(self, on: bytes, off: bytes) -> None:
        """Compare the bytes that both cores sent to the client."""
        assert on == off

    def ask_seldom(self) -> None:
        """Do not compare the attributes `COUNTS` after each step.

        Reading them makes the core count its traffic.
        """
        self.asked = tuple(name for name in ASKED if name not in COUNTS)

    def check_measured(self) -> None:
        """Compare all counts and measurements of both cores."""
        _same("tally", *self.cores)
        assert self._distributions(0) == self._distributions(1)

    def _distributions(self, which: int) -> list[tuple[str, list[int], float]]:
        measured = self._measured[which]
        measured.settle()
        each = [(name, getattr(measured, name)) for name in Measured.DISTRIBUTIONS]
        return [(name, found.counts, round(found.total, 6)) for name, found in each]


class Joining(Twin):
    """A twin whose first core gets the broker's bytes joined by `FastPath.join`. The second core gets them as
    they arrive. While `join` keeps the start of a response, the second core may be ahead.
    """

    kept = 0
    """The number of reads that `FastPath.join` kept back completely."""
    _ahead = b""
    """The bytes for the client that only the second core has sent so far."""

    def receive_broker(self, data: bytes, now: float) -> None:
        """Process bytes from the broker as the link does, with `FastPath.join` first."""
        self._mirror()
        fast_path = self._on.fast_path
        joined = fast_path.join(data, now)
        self.kept += not joined
        done, out = fast_path.response(joined, fast_path.began, now)
        self.passed += done == len(joined) > 0
        self._to_client += [out] if out else []
        if done < len(joined):
            self._on.receive_broker(joined[done:], now)
        self._off.receive_broker(data, now)
        self._go_on(now)
        keeps = not joined
        self.asked = () if keeps else ASKED
        self._compare(to_client=out)
        assert keeps or not self._ahead

    def _compare_client(self, on: bytes, off: bytes) -> None:
        self._ahead += off
        assert self._ahead.startswith(on)
        self._ahead = self._ahead[len(on) :]


def _same(name: str, on: Any, off: Any) -> None:
    """Assert that an attribute is the same with and without the fast path. The error names what differs."""
    assert not (found := list(_differing(name, getattr(on, name), getattr(off, name)))), "; ".join(found)


def _differing(name: str, on: Any, off: Any) -> Iterator[str]:
    if on == off:
        return
    if is_dataclass(on):
        for each in fields(on):
            yield from _differing(f"{name}.{each.name}", getattr(on, each.name), getattr(off, each.name))
    else:
        yield f"{name}: {on!r} with the fast path, {off!r} without it"


def _joined(pieces: list[Buffer]) -> bytes:
    return b"".join(map(bytes, pieces))
