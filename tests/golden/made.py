"""Creates the contents of the golden files of a gateway, with which tests compare later results.

The files here are `/metrics` and `/state` without features. The folder of each feature's tests has its piece:
what the feature adds to them, and its page. Its `made.py` has the options and what is counted.
"""

import itertools
import json
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from proxy.addresses import Address, Broker
from proxy.command.config import Config, load
from proxy.core.events import FetchKind, NotFollowed, Refusal, SideTally, Tally
from proxy.core.histograms import ADDED_SECONDS, Distribution, Measured
from proxy.features.declared import FEATURES, NAMES
from proxy.session.state import Loss
from proxy.telemetry.brokers import HungBrokers, Reachability
from proxy.telemetry.history import History, RecentEvents
from proxy.telemetry.logs import silent
from proxy.telemetry.metrics import exposition
from proxy.telemetry.state import overview
from proxy.telemetry.status import Account, Status, WithBroker
from proxy.telemetry.totals import BROKER_FETCHES, NodeId

FOLDER: Final = Path(__file__).parent
OPTIONS: Final = {"bootstrap": "kafka-1:9092", "sessions_off_for": "b,a"}
_OF_THE_PROCESS: Final = ("python_", "process_")


def base() -> dict[Path, str]:
    """Return the contents of the files here, by path."""
    return {FOLDER / "metrics.txt": metrics(account()), FOLDER / "state.json": _text(state())}


def piece(name: str) -> dict[Path, str]:
    """Return the contents of a feature's files, by path."""
    texts = {"state.json": _text(added(state(), state(name)))}
    if lines := added_lines(metrics(account()), metrics(account(name))):
        texts["metrics.txt"] = lines
    feature = FEATURES[NAMES.index(name)]
    reports = feature.reports and feature.reports()
    if reports and reports.page:
        texts[f"{feature.page[1:]}.json"] = _text(reports.page.document(_made(name).COUNTED))
    return {FOLDER.parent / "features" / name / file: text for file, text in texts.items()}


def metrics(of: Account) -> str:
    """Return `/metrics` without the metrics of Python and of the process."""
    lines = exposition(of).decode().splitlines(keepends=True)
    return "".join(
        line
        for line in lines
        if not line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(_OF_THE_PROCESS)
    )


def state(*features: str) -> dict[str, Any]:
    """Return `/state` of the base with these features, without the list of connections. The time is 0."""
    told = account(*features)
    document = overview(told) | {"time": 0}
    for feature in (each for name, each in zip(NAMES, FEATURES, strict=True) if name not in features):
        for option in feature.options.declared():
            del document["config"][option.name]
        if feature.reports:
            for key in feature.reports().state(told.status.config.of(feature.options), None):
                del document[key]
    return document


def added_lines(base: str, whole: str) -> str:
    """Return the lines that `whole` has in addition to those of `base`."""
    before, lines = base.splitlines(keepends=True), whole.splitlines(keepends=True)
    assert [line for line in lines if line in before] == before
    return "".join(line for line in lines if line not in before)


def added(base: Any, whole: Any) -> Any:
    """Return what a document has in addition to `base`."""
    if isinstance(base, dict):
        assert base.keys() <= whole.keys()
        return {
            key: added(base[key], value) if key in base else value
            for key, value in whole.items()
            if key not in base or value != base[key]
        }
    if isinstance(base, list):
        return [added(*pair) for pair in zip(base, whole, strict=True)]
    assert base == whole
    return whole


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"


def _made(name: str) -> Any:
    return import_module(f"tests.features.{name}.made")


def account(*features: str) -> Account:
    """Return an account in which all figures differ, with options and counts of these features."""
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
            sessions_lost=Counter({Loss.NO_ID: 3, Loss.LEFT_OUT: 4}),  # `next` would change other figures
            session_checks=5,
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

    made = [_made(name) for name in features]
    counts: dict[str, Any] = {
        "tallies": {None: tally(), 1: tally(), 2: tally()},
        "measured": {None: _measured(), 1: _measured()},
        "accepted": next(number),
        "turned_away": Counter({"limit": next(number), "idle": next(number)}),
        "faults": Counter(client=next(number), broker=next(number)),
        "connect_failures": Counter({None: next(number), 1: next(number)}),
        "tls_failures": Counter(client=next(number), broker=next(number)),
        "authentication_failures": Counter(client=next(number), broker=next(number)),
        "leaders_updated": next(number),
        "paused": Counter({("client", "core"): next(number), ("broker", "budget"): next(number)}),
        "links": {None: with_broker(), 1: with_broker(), 2: with_broker()},
        "process": {
            "pid": next(number),
            "cpu_seconds": next(number) / 8,
            "resident_bytes": next(number),
            "open_fds": next(number),
        },
        "features": {type(each.COUNTED): each.COUNTED for each in made if each.COUNTED is not None},
        "loop_lag": Distribution(ADDED_SECONDS),
        "recent_events": RecentEvents(),
    }
    options = {name: text for each in made for name, text in each.OPTIONS.items()}
    counts["loop_lag"].note([0.002, 0.3])
    counts["recent_events"].note(1000.0, "SessionLost", "broker 1: error 70", warning=True)
    history = History()
    for at in range(3):
        history.note(2.0 * at, [at * next(number) for _ in range(BROKER_FETCHES + len(FetchKind))])
    failures = counts.pop("connect_failures")
    return Account(
        status=_status(number, load(OPTIONS | options, {}, None), failures),
        uptime_seconds=next(number) / 8,
        history=history,
        saved_bytes={None: next(number), 1: next(number), 2: next(number)},
        response_seconds={None: (0.5, None), 1: (0.25, 0.125)},
        **counts,
    )


def _status(number: "itertools.count[int]", config: Config, failures: Counter[NodeId]) -> Status:
    slots, connections, buffered = (next(number) for _ in range(3))
    log, bootstrap = silent(), Address("kafka-1", 9092)
    reach = Reachability((bootstrap,), log, lambda *_, **__: None, str)
    reach.bootstrap_responded(bootstrap)
    reach.unreachable(2, "connection refused")
    reach.since[2], reach.failures = 90.0, failures
    return Status(
        at=100.0,
        config=config,
        listen=Address("127.0.0.1", 19092),
        brokers={
            1: Broker(node_id=1, address=Address("kafka-1", 9092), listener=Address("127.0.0.1", 19094)),
            2: Broker(node_id=2, address=Address("kafka-2", 9092), problem="port 19095 is taken"),
        },
        reach=reach,
        hung_brokers=HungBrokers(log, lambda *_, **__: None, str),
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


def _measured() -> Measured:
    measured = Measured()
    for place, name in enumerate(Measured.DISTRIBUTIONS):
        getattr(measured, name).note([0.0004 * (place + 1), 3 + place])
    return measured
