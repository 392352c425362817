"""Creates the contents of the golden files, with which tests compare later results.

The files are `/metrics`, `/state`, `/cooperative`, and `measure --json`.
"""

import io
import itertools
import json
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from proxy.addresses import Address, Broker
from proxy.command.config import load
from proxy.core.events import FetchKind, NotFollowed, Refusal, SideTally, Tally
from proxy.core.histograms import Measured
from proxy.features.client_sessions.figures import ClientSessionFigures
from proxy.features.cooperative.figures import cooperative
from proxy.features.cooperative.tally import Cooperative, FilterTally, GroupSeen, LaneSeen, MemberSeen
from proxy.features.racks.figures import WHAT, ReplicaFigures, Zones
from proxy.features.racks.racks import RETURNS, Zone
from proxy.telemetry.history import History
from proxy.telemetry.metrics import exposition
from proxy.telemetry.state import overview
from proxy.telemetry.status import Account, Counts, ProcessFigures, Status, UnreachableBrokers, WithBroker
from proxy.telemetry.totals import BROKER_FETCHES
from proxy.telemetry.unanswered import Unanswered
from replay import cli
from replay.report.model import Report
from tests.replay.measure.consumers import CLIENT, captured_twice

FOLDER: Final = Path(__file__).parent
CAPTURES: Final = sorted((FOLDER.parents[1] / "captures").glob("*.pcap"))
OPTIONS: Final = {
    "bootstrap": "kafka-1:9092",
    "sessions_off_for": "b,a",
    "rack": "R2",
    "rack_clients": "c,b",
}
_OF_THE_PROCESS: Final = ("python_", "process_")


def measured(capture: Path) -> str:
    """Return the report of `replay measure --json`."""
    return _printed("measure", str(capture), "--json")


def _printed(*arguments: str) -> str:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(io.StringIO()):
        assert cli.main([*arguments]) in {0, 3}
    return said.getvalue()


def kept(capture: Path) -> Report:
    """Return the golden report of a capture, for tests that need not measure it again."""
    found: Report = json.loads((FOLDER / f"{capture.stem}.json").read_text())
    return found


def metrics(of: Account | None = None) -> str:
    """Return `/metrics` without the metrics of Python and of the process."""
    lines = exposition(of or account()).decode().splitlines(keepends=True)
    return "".join(
        line
        for line in lines
        if not line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(_OF_THE_PROCESS)
    )


def state() -> str:
    """Return `/state` without the list of connections. The time in it is 0."""
    return _json(overview(account()) | {"time": 0})


def groups() -> str:
    """Return `/cooperative`."""
    found = account().counts.of(Cooperative)
    assert found is not None
    return _json(cooperative(found))


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"


def account() -> Account:
    """Return an account in which all figures differ."""
    number = itertools.count(11)

    def side() -> SideTally:
        figures = {name: next(number) for name in SideTally.__slots__ if name != "fetches"}
        return SideTally(**figures, fetches=[next(number) for _ in FetchKind])

    def tally() -> Tally:
        return Tally(
            client=side(),
            broker=side(),
            session_errors=Counter({70: next(number), 71: next(number)}),
            refusals=next(number),
            probe_bytes=next(number),
            passthrough=Counter({"one partition": next(number), "resting": next(number)}),
            refused=Counter({refusal: next(number) for refusal in Refusal}),
            leaders_followed=Counter(fetch=next(number), offsets=next(number)),
            leaders_not_followed=Counter({reason: next(number) for reason in NotFollowed}),
        )

    def with_broker() -> WithBroker:
        return WithBroker(
            connections=next(number),
            reached=next(number),
            sessions=next(number),
            session_partitions=next(number),
            outstanding=next(number),
            oldest_seconds=next(number) / 8,
        )

    counts = Counts(
        tallies={None: tally(), 1: tally(), 2: tally()},
        measured={None: _measured(), 1: _measured()},
        accepted=next(number),
        turned_away=Counter({"limit": next(number), "idle": next(number)}),
        faults=Counter(client=next(number), broker=next(number)),
        connect_failures=Counter({None: next(number), 1: next(number)}),
        tls_failures=Counter(client=next(number), broker=next(number)),
        authentication_failures=Counter(client=next(number), broker=next(number)),
        leaders_updated=next(number),
        features={
            Zones: _zones(itertools.count(200_001)),
            ClientSessionFigures: _client_sessions(number),
        },
        links={None: with_broker(), 1: with_broker(), 2: with_broker()},
        paused=Counter({("client", "core"): next(number), ("broker", "budget"): next(number)}),
        process=ProcessFigures(
            pid=next(number),
            cpu_seconds=next(number) / 8,
            resident_bytes=next(number),
            open_fds=next(number),
        ),
    )
    counts.features = {**counts.features, Cooperative: _cooperative(number)}
    counts.loop_lag.note([0.002, 0.3])
    counts.recent_events.note(1000.0, "SessionLost", "broker 1: error 70", warning=True)
    history = History()
    for at in range(3):
        history.note(2.0 * at, [at * next(number) for _ in range(BROKER_FETCHES + len(FetchKind))])
    return Account(
        status=_status(number, counts),
        counts=counts,
        uptime_seconds=next(number) / 8,
        history=history,
        saved_bytes={None: next(number), 1: next(number), 2: next(number)},
        response_seconds={None: (0.5, None), 1: (0.25, 0.125)},
    )


def _status(number: "itertools.count[int]", counts: Counts) -> Status:
    slots, connections, buffered = (next(number) for _ in range(3))
    sessions = counts.of(ClientSessionFigures)
    assert sessions is not None
    sessions.sessions, sessions.partitions = next(number), next(number)
    unreachable = UnreachableBrokers()
    unreachable.failed(2, "connection refused", 90.0)
    return Status(
        at=100.0,
        config=load(OPTIONS, {}, None),
        listen=Address("127.0.0.1", 19092),
        bootstrap=(Address("kafka-1", 9092),),
        brokers={
            1: Broker(node_id=1, address=Address("kafka-1", 9092), listener=Address("127.0.0.1", 19094)),
            2: Broker(node_id=2, address=Address("kafka-2", 9092), problem="port 19095 is taken"),
        },
        unreachable_brokers=unreachable,
        unanswered=Unanswered(),
        bootstrap_answered=True,
        draining=False,
        problems=["the listener of broker 2 is missing"],
        slots_used=slots,
        connections=connections,
        buffered_bytes=buffered,
        capture_stopped=True,
        reloaded_at=float(next(number)),
        reload_failures=next(number),
        certificates={"--tls-cert": float(next(number)), "--tls-cert-of 1": float(next(number))},
        broker_certificates={1: float(next(number))},
    )


def _client_sessions(number: "itertools.count[int]") -> ClientSessionFigures:
    evictions = {False: next(number), True: next(number)}
    return ClientSessionFigures(evictions=evictions)


def _measured() -> Measured:
    measured = Measured()
    for place, name in enumerate(Measured.DISTRIBUTIONS):
        getattr(measured, name).note([0.0004 * (place + 1), 3 + place])
    return measured


def _zones(number: "itertools.count[int]") -> Zones:
    return Zones(
        byte_counts=Counter({(zone.value, what): next(number) for zone in Zone for what in WHAT}),
        racks={"1": "R1", "2": "R2", "3": ""},
        racks_of_known={1: "R1", 2: "R2"},
        rack="R2",
        reads=ReplicaFigures(
            held=next(number),
            named=next(number),
            returns=Counter({how: next(number) for how in RETURNS}),
        ),
    )


def _cooperative(number: "itertools.count[int]") -> Cooperative:
    def counted(*names: Any) -> Counter[Any]:
        return Counter({name: next(number) for name in names})

    lanes = [
        LaneSeen(topic="t", partition=0, ranges=((0, 0x7FFF_FFFF),), position=next(number), lag=next(number)),
        LaneSeen(topic="t", partition=1, ranges=((0, 0xFFFF_FFFF),), position=None, lag=None),
    ]
    return Cooperative(
        tally=FilterTally(
            records=counted("kept", "filtered"),
            batches=counted("untouched", "thinned", "dropped", "placeholder"),
            upstream_bytes=next(number),
            client_bytes=next(number),
            skipped_offsets=next(number),
            commits=counted("ok", "error"),
            refused=counted(6, 25),
            exclusive=counted("outsider", "instances"),
        ),
        reader_fetches=next(number),
        buffered_bytes=next(number),
        detached=counted("full", "wait"),
        groups=[
            GroupSeen(
                name="g",
                exclusive="",
                members=[MemberSeen(client_id="g.1", host="127.0.0.1", state="shares", lanes=lanes)],
            ),
            GroupSeen(name="h", exclusive="outsider", members=[]),
        ],
    )


def reports() -> str:
    """Return what `measure` says first of a broker's capture, of two hosts, and of both sides of a router."""
    with TemporaryDirectory() as folder:
        router = str(captured_twice(Path(folder) / "router.pcap", CLIENT))
        hosts = [
            str(FOLDER.parents[1] / "captures" / f"librdkafka-{name}.pcap") for name in ("100p", "rebalance")
        ]
        of_each = {
            "captures/followers.pcap": [str(FOLDER.parents[1] / "captures" / "followers.pcap")],
            "captures of two hosts": hosts,
            "before and after NAT": [router],
        }
        told = {name: _printed("measure", *given).split("\n\n")[0] for name, given in of_each.items()}
    return "\n".join(f"# {name}\n{text}\n" for name, text in told.items())


FILES: Final = {
    "metrics.txt": metrics,
    "state.json": state,
    "cooperative.json": groups,
    "reports.txt": reports,
}
