"""Draws the page of a client, a connection or a broker. Pure functions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from rich.text import Text

from proxy.dashboard.figures import NOTHING, moment, scaled, share, span, volume
from proxy.dashboard.rates import Rates
from proxy.dashboard.rows import ClientFigures
from proxy.dashboard.screen import BAD, LABEL, line, section
from proxy.dashboard.snapshot import BrokerFigures, ClientConnection, PastEvent
from proxy.dashboard.tables import per_second, problem_of

_NAMES: Final = 16


def client(row: ClientFigures, rates: Rates, events: Iterable[PastEvent]) -> list[Text]:
    """Draw the page of a client, or of one connection, with the recent events that name it."""
    rate = row.rate
    lines = [
        line((f" {row.name or NOTHING} ", "bold reverse"), f"  {row.software or 'software not told'}"),
        *_pairs(
            ("connections", str(len(row.connections))),
            ("now", f"{per_second(rate.fetches)} fetches/s, {volume(rate.client)}/s with the client"),
            ("", f"{volume(rate.broker)}/s with brokers, {volume(rate.saved)}/s saved"),
            ("since accepted", f"{volume(row.saved)} saved in {scaled(row.fetches)} fetches"),
            ("why not", row.why or "it saves"),
            *_zones(row),
        ),
    ]
    for connection in row.connections:
        lines += [Text(), *_connection(connection, rates)]
    named = [event for event in events if row.name and row.name in event.text]
    return [*lines, *_events(named)]


def broker(
    figures: BrokerFigures, clients: Iterable[ClientConnection], events: Iterable[PastEvent]
) -> list[Text]:
    """Draw the page of a broker, with those of `clients` that use it and the recent events that name it."""
    lines = [
        line(
            (f" broker {figures.name} ", "bold reverse"),
            f"  {figures.address}" if figures.address != figures.name else "",
        ),
        *_pairs(
            ("problem", problem_of(figures) or "none"),
            *((("rack", figures.rack),) if figures.rack else ()),
            ("connections", scaled(figures.connections)),
            ("due", f"{scaled(figures.outstanding)} requests without a response, {_late(figures)}"),
            ("sessions", f"{scaled(figures.sessions)} of {scaled(figures.partitions)} partitions"),
            ("refused", f"{scaled(figures.refusals)} requests for a session: no free slot at the broker"),
            ("evicted", f"{scaled(figures.evictions)} sessions (error 70); clients noticed nothing"),
            (
                "response time",
                f"fetch {moment(figures.fetch_seconds)}, other {moment(figures.other_seconds)}",
            ),
            ("", "mean of two minutes, with the wait that a fetch allows"),
            ("saved", volume(figures.saved)),
        ),
        Text(),
        section(" Clients ", "those with the most bytes"),
    ]
    for one in sorted(clients, key=lambda one: -one.client_bytes):
        if one.broker == figures.name:
            moved = f"{volume(one.client_bytes)}, {volume(one.saved)} saved"
            lines.append(line((one.client_id or NOTHING, LABEL), f"  {one.address}  {moved}"))
    named = [
        event
        for event in events
        if f"broker {figures.name} " in f"{event.text} " or figures.address in event.text
    ]
    return [*lines, *_events(named)]


def _zones(row: ClientFigures) -> Iterator[tuple[str, str]]:
    # Only a gateway with a rack counts these bytes.
    if any(one.zone for one in row.connections):
        records = sum(one.records for one in row.connections)
        other = sum(one.records_other_zone for one in row.connections)
        yield "other zone", f"{volume(other)} of records, {share(other, records)} of all"


def _late(figures: BrokerFigures) -> str:
    return f"the oldest {span(figures.late)} late" if figures.is_late else "none of them late"


def _connection(one: ClientConnection, rates: Rates) -> Iterator[Text]:
    rate = rates.of(one)
    session = f"{scaled(one.partitions)} partitions, next epoch {one.epoch}" if one.epoch else "none"
    zone = f" ({one.zone} zone)" if one.zone else ""
    phase = f"{one.phase or 'open'} for {span(one.age)}"
    yield line((one.address, LABEL), f"  to broker {one.broker}{zone}, {phase}")
    yield from _pairs(
        ("session", session),
        ("fetches", f"{scaled(one.fetches)} of v{one.version}" if one.fetches else "none"),
        ("now", f"{per_second(rate.fetches)} fetches/s, {volume(rate.saved)}/s saved"),
        ("incremental", share(one.incremental, 1) if one.fetches else NOTHING),
        ("left out", f"{scaled(one.left_out)} partition entries"),
        ("saved", volume(one.saved)),
        ("buffered", volume(one.held)),
        ("forwarded", _counted(one.reasons)),
        ("session errors", _counted(one.errors)),
        ("last event", one.last_event or NOTHING),
    )
    if one.last_error:
        yield line(f"  {'last error':<{_NAMES}}", (one.last_error, BAD))


def _counted(counts: Mapping[str, int]) -> str:
    by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {scaled(count)}" for name, count in by_count if count) or "none"


def _events(events: list[PastEvent]) -> list[Text]:
    return [Text(), section(" Events ", "the newest first"), *past(events)] if events else []


def past(events: Sequence[PastEvent]) -> list[Text]:
    """Draw a line for each event, the newest first."""
    lines = []
    for event in reversed(events):
        times = f" ({event.count} times)" if event.count > 1 else ""
        text = f"{event.text}{times}", BAD if event.warning else ""
        lines.append(line(f"{span(event.ago):>12} ago  ", text))
    return lines


def _pairs(*pairs: tuple[str, str]) -> Iterator[Text]:
    return (line(f"  {name:<{_NAMES}}", text) for name, text in pairs)
