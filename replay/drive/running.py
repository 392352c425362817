"""Plays a script: asks the targets for their brokers and topics, sends the requests, makes the report."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import floor
from typing import Final

from proxy.protocol.api import ApiKey
from proxy.version import VERSION
from replay.drive.access import Access
from replay.drive.asked import asked, fetched, nameless, needed
from replay.drive.compare import Comparison
from replay.drive.mapping import Overrides
from replay.drive.options import TO_CAPTURED, DriveOptions, OffsetPolicy
from replay.drive.pacing import Ceiling, Pace
from replay.drive.player import Player
from replay.drive.report import (
    CAPTURE,
    DriveReport,
    Settings,
    figures,
    left_out_ratio,
    left_out_rows,
)
from replay.drive.saving import measured, scrape, settled
from replay.drive.script import READS, PlayedConnection, Script, captured
from replay.drive.side import TargetSide, playable
from replay.drive.target import Destination, look, names_of
from replay.drive.wire import TargetError
from replay.protocol.naming import SCHEMAS

TARGET: Final = "target"
AGAINST: Final = "against"
OWN: Final = b"-replay"
"""What the ids of groups and transactions end with, if requests change them."""
_NAMES: Final = ("group:", "transaction:")
_STOPS: Final = (signal.SIGINT, signal.SIGTERM)
PROGRESS_SECONDS: Final = 0.25
PLAIN: Final = Access(), Access()
"""For --target and --against: plain text, and no login."""

Progress = Callable[[int, int], None]
"""A function to call with two numbers: requests sent so far, and all requests."""


def _settings(options: DriveOptions) -> Settings:
    return {
        "target": "" if options.target is None else str(options.target),
        "against": "" if options.against is None else str(options.against),
        "speed": "max" if options.speed is None else f"{options.speed:g}",
        "rate": options.rate,
        "connections": options.connections,
        "loop": options.loop,
        "offsets": options.policy.value,
        "read_to": options.reads_to,
        "max_wait_ms": options.max_wait,
        "min_bytes": options.min_bytes,
    }


def plan(script: Script, options: DriveOptions, problems: Sequence[str]) -> DriveReport:
    """Report what would be played, without connecting to the targets."""
    return {
        "version": VERSION,
        "settings": _settings(options),
        "connections": len(script.connections),
        "captured_seconds": round(script.seconds, 3),
        "seconds": 0.0,
        "planned": script.requests * options.connections * options.loop,
        "sent": 0,
        "lost": {},
        "behind_seconds": 0.0,
        "left_out": left_out_rows(script.left_out),
        "left_out_ratio": left_out_ratio(script, script.left_out),
        "created_topics": {},
        "missing_topics": {},
        "led_elsewhere": {},
        "interrupted": False,
        "stopped_by": "",
        "stopped_at": None,
        "timed_out": False,
        "connection_errors": {},
        "figures": figures(CAPTURE, captured(script.connections)),
        "saving": None,
        "compare": None,
        "problems": list(problems),
    }


async def drive(
    script: Script,
    options: DriveOptions,
    progress: Progress,
    problems: Sequence[str],
    accesses: tuple[Access, Access] = PLAIN,
) -> DriveReport:
    """Play a script. Compare responses with what a `Keeper` has kept of the captured ones, if that is wanted.

    Raises:
        TargetError: a target can't be reached, is not a Kafka broker, or can't create a topic; nothing was
            played. Or the gateway's admin endpoint does not respond, before or after the run.
    """
    sides = await _sides(script, options, accesses)
    routes = _routes(script, sides)
    connections, unplayed = playable(script.connections, sides, routes, script.earlier)
    comparison = None
    if options.compare:
        comparison = Comparison(script, sides[0], routes, connections, options.policy, options.allow)
    pace = Pace(options.speed, None if options.rate is None else Ceiling(options.rate))
    player = Player(
        connections,
        sides,
        routes,
        pace,
        copies=options.connections,
        rounds=options.loop,
        earlier=script.earlier,
        own=(b"", b"") if options.keep_ids else _own(connections),
        on_sent=None if comparison is None else comparison.sent,
    )
    fetches = any(step.api_key == ApiKey.FETCH for each in connections for step in each.steps)
    admin = options.admin if options.against is not None and fetches else None
    before = None if admin is None else await scrape(admin)
    stopped_by = await _play(player, pace, options, progress)
    saving = None
    if admin is not None and before is not None:
        counted = await settled(admin) - before
        if all(side.tally.of(ApiKey.FETCH).answered for side in sides):
            saving = measured(counted, sides[0].tally, sides[1].tally)
    report = plan(script, options, problems)
    _add_run(report, player, pace, sides)
    report["interrupted"] = bool(stopped_by)
    report["stopped_by"] = stopped_by
    if player.stopped_at is not None:
        # Rounded down: after the request at this time, a run that goes on would leave it out.
        report["stopped_at"] = floor((script.start + player.stopped_at) * 1e6) / 1e6
    report["left_out"] = left_out_rows(script.left_out + unplayed + player.left_out)
    report["left_out_ratio"] = left_out_ratio(script, script.left_out + unplayed + player.missed)
    report["saving"] = saving
    if comparison is not None:
        report["compare"] = comparison.figures(options.connections * options.loop)
    return report


async def _sides(script: Script, options: DriveOptions, accesses: tuple[Access, Access]) -> list[TargetSide]:
    await _learn_names(script, options, accesses[0])
    topics = asked(script, script.topics)
    named = needed(script, topics)
    found = []
    for name, flag, address, access in (
        (TARGET, "--target", options.target, accesses[0]),
        (AGAINST, "--against", options.against, accesses[1]),
    ):
        if address is None:
            continue
        try:
            target = await look(
                address,
                {*topics, *named},
                offsets=options.policy is not OffsetPolicy.KEEP or options.reads_to == TO_CAPTURED,
                create=named if options.create_topics else None,
                access=access,
            )
        except TargetError as error:
            raise type(error)(f"{flag} {error}") from None
        found.append(
            TargetSide(
                name,
                target,
                names=script.topics,
                asked=topics,
                policy=options.policy,
                overrides=Overrides(options.max_wait, options.min_bytes, options.reads_to == TO_CAPTURED),
                written=script.written,
            )
        )
    return found


async def _learn_names(script: Script, options: DriveOptions, access: Access) -> None:
    # The target has the captured topic ids if it is the captured cluster, or has a copy of its metadata.
    if options.target is None or not (ids := nameless(script)):
        return
    try:
        script.topics |= await names_of(options.target, ids, access)
    except TargetError as error:
        raise type(error)(f"--target {error}") from None


def _own(connections: Iterable[PlayedConnection]) -> tuple[bytes, bytes]:
    """Return the suffixes for group ids and for transactional ids, each only if such are written."""
    # With the captured ids, the requests would disturb live groups, and fence live producers.
    writes = {step.api_key for each in connections for step in each.steps} - READS
    groups, transactions = (any(name in SCHEMAS.get(key, "") for key in writes) for name in _NAMES)
    return OWN if groups else b"", OWN if transactions else b""


def _routes(script: Script, sides: Sequence[TargetSide]) -> dict[str, list[Destination]]:
    """Return each connection's destinations, one for each side, by the connection's name."""
    # Connections to the same captured broker have the same destinations.
    by_broker: dict[str, dict[str, set[int]]] = {}
    for each in script.connections:
        partitions = by_broker.setdefault(each.broker, {})
        for topic, found in fetched(each, script.topics).items():
            partitions.setdefault(topic, set()).update(found)
    return {each.name: [side.place(by_broker[each.broker]) for side in sides] for each in script.connections}


async def _play(player: Player, pace: Pace, options: DriveOptions, progress: Progress) -> str:
    """Play all requests, up to the time limit or a signal. Return the name of the first signal, or ""."""
    loop = asyncio.get_running_loop()
    received: list[str] = []

    def stop(number: signal.Signals) -> None:
        received.append(number.name)
        pace.stop()

    for number in _STOPS:
        with suppress(NotImplementedError):
            loop.add_signal_handler(number, stop, number)
    if options.duration is not None:
        loop.call_later(options.duration, pace.stop)
    reporting = loop.create_task(_report_progress(player, progress))
    try:
        await player.play()
    finally:
        reporting.cancel()
        for number in _STOPS:
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
    progress(player.sent, player.total)
    return received[0] if received else ""


async def _report_progress(player: Player, progress: Progress) -> None:
    while True:
        progress(player.sent, player.total)
        await asyncio.sleep(PROGRESS_SECONDS)


def _add_run(report: DriveReport, player: Player, pace: Pace, sides: Iterable[TargetSide]) -> None:
    missing: Counter[str] = Counter()
    elsewhere: Counter[str] = Counter()
    created: dict[str, int] = {}
    report["figures"] = figures(CAPTURE, captured(player.connections))
    for side in sides:
        created |= side.target.created
        missing |= side.fetches.missing
        elsewhere |= side.fetches.elsewhere
        report["lost"][side.name] = side.lost
        report["figures"] += figures(side.name, side.tally)
    report["connections"] = sum(bool(each.steps) for each in player.connections)
    report["planned"] = player.total
    report["seconds"] = round(player.seconds, 3)
    report["sent"] = player.sent
    report["behind_seconds"] = round(pace.behind, 3)
    report["created_topics"] = dict(sorted(created.items()))
    report["missing_topics"] = dict(sorted(missing.items()))
    report["led_elsewhere"] = dict(sorted(elsewhere.items()))
    report["timed_out"] = player.timed_out
    report["connection_errors"] = dict(player.errors.most_common())
