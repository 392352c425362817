"""Captures of TLS with their secrets are read like the same traffic in plain text."""

import dataclasses
import random
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.capture.kafka.connection import NOT_KAFKA
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.kafka.exchanges import Event
from replay.capture.packets.tcp import SYN
from replay.capture.tls.keylog import CLIENT, SERVER, Secrets
from replay.capture.tls.reasons import NO_HANDSHAKE, NO_SECRETS, TLS, UNSUPPORTED
from tests.examples import few
from tests.replay.capture.encrypting import TLS_1_2, Ends, Pipe, begun, encrypted, ends, from_higher_port
from tests.replay.capture.packets_of import Row, packets, read, resized

CAPTURES = few(("librdkafka-100p", "java-100p", "many-clients-any"), "librdkafka-100p")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def both(folder: Path) -> Ends:
    return ends(folder / "1.3")


@cache
def plain(name: str) -> list[Row]:
    return begun(packets(name))


def values(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the fields of events as dicts, without the figures that only TLS has."""
    found = []
    for event in events:
        each = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
        if isinstance(event, Exchange):
            each["response"] = b"".join(event.response)
        else:
            del each["packets"], each["tls_bytes"]
        found.append(each)
    return found


def exchanges(events: Iterable[Event]) -> set[tuple[Any, ...]]:
    """Return the values of exchanges without their numbers, which depend on when a loss was noticed."""
    found = [one for one in values(events) if "api_key" in one]
    return {tuple(one[name] for name in sorted(one) if name != "number") for one in found}


def end_of(events: Sequence[Event]) -> ConnectionEnd:
    end = events[-1]
    assert isinstance(end, ConnectionEnd)
    return end


def assert_bytes_add_up(events: Sequence[Event], rows: Iterable[Row]) -> None:
    """Check the equation of `replay.capture.kafka.exchange`. All other payload must be in `tls_bytes`."""
    ends_of = [event for event in events if isinstance(event, ConnectionEnd)]
    frames = sum(one.request_bytes + one.response_bytes for one in events if isinstance(one, Exchange))
    counted = sum(one.client_bytes + one.broker_bytes for one in ends_of)
    others = sum(
        one.headerless_bytes + one.unframed_bytes + one.partial_bytes - one.frame_gap_bytes for one in ends_of
    )
    assert counted == frames + others
    assert counted + sum(one.tls_bytes for one in ends_of) == sum(len(one.payload) for one in rows)


@pytest.mark.parametrize("name", CAPTURES)
@pytest.mark.parametrize("cipher", [None, *TLS_1_2])
def test_it_reads_as_the_same_traffic_in_plain_text(folder: Path, name: str, cipher: str | None) -> None:
    configured = ends(folder / f"{name}-{cipher}", cipher)
    rows = encrypted(plain(name), configured)
    found = read(rows, secrets=configured.secrets())

    assert values(found) == values(read(plain(name)))
    assert_bytes_add_up(found, rows)
    assert all(end.tls_bytes > 1000 for end in found if isinstance(end, ConnectionEnd))


@pytest.mark.parametrize("size", [16, 1448, 65536])
def test_records_may_be_spread_over_packets_in_any_way(both: Ends, size: int) -> None:
    rows = list(resized(encrypted(plain("java-100p"), both), size))
    found = values(read(rows, secrets=both.secrets()))
    expected = values(read(plain("java-100p")))

    assert [one.get("response") for one in found] == [one.get("response") for one in expected]
    assert [one.get("request") for one in found] == [one.get("request") for one in expected]


def test_a_port_that_is_named_changes_nothing(both: Ends) -> None:
    name = "librdkafka-100p"
    rows = encrypted(plain(name), both)
    port = frozenset({min(int.from_bytes(rows[0].connection[at : at + 2]) for at in (5, 11))})

    assert values(read(rows, ports=port, secrets=both.secrets())) == values(read(plain(name), ports=port))


def test_a_connection_without_secrets_stays_tls(both: Ends) -> None:
    rows = encrypted(plain("librdkafka-100p"), both)
    size = sum(len(row.payload) for row in rows)
    for secrets, reason in ((None, TLS), (Secrets(), NO_SECRETS)):
        found = read(rows, secrets=secrets)
        assert all(isinstance(one, ConnectionEnd) and one.reason == reason for one in found)
        assert sum(one.unframed_bytes for one in found if isinstance(one, ConnectionEnd)) == size
    assert_bytes_add_up(found, rows)


@pytest.mark.parametrize("size", [32, 48])
def test_a_connection_with_wrong_secrets_stays_tls(both: Ends, size: int) -> None:
    rows = encrypted(plain("librdkafka-100p"), both)
    wrong = Secrets()
    for key in both.secrets().by_connection:
        wrong.by_connection[key] = bytes(size)

    found = read(rows, secrets=wrong)
    assert [one.reason for one in found if isinstance(one, ConnectionEnd)] == [NO_SECRETS] * len(found)
    assert_bytes_add_up(found, rows)


@pytest.mark.parametrize("label", [CLIENT, SERVER])
def test_half_of_the_secrets_are_none(both: Ends, label: bytes) -> None:
    rows = encrypted(plain("librdkafka-100p"), both)
    half = both.secrets()
    half.by_connection = {
        key: value for key, value in half.by_connection.items() if not key.startswith(label)
    }

    assert {one.reason for one in read(rows, secrets=half) if isinstance(one, ConnectionEnd)} == {NO_SECRETS}


def test_a_capture_that_began_later_says_so(both: Ends) -> None:
    rows = [row for row in encrypted(plain("java-100p"), both) if not row.flags & SYN]
    first = {row.connection: index for index, row in reversed([*enumerate(rows)])}
    later = [row for index, row in enumerate(rows) if index > first[row.connection] + 6]
    found = read(later, secrets=both.secrets())

    assert {one.reason for one in found if isinstance(one, ConnectionEnd)} == {NO_HANDSHAKE}
    assert_bytes_add_up(found, later)


def test_a_port_that_is_named_does_not_make_kafka_of_tls(both: Ends) -> None:
    rows = encrypted(plain("librdkafka-100p"), both)
    ports = frozenset({min(int.from_bytes(rows[0].connection[at : at + 2]) for at in (5, 11))})
    later = [row for row in rows if row.payload][60:]

    assert reasons(read(rows, ports=ports)) == {TLS}
    assert reasons(read(later, ports=ports)) == {TLS}
    assert reasons(read(later, ports=ports, secrets=both.secrets())) == {NO_HANDSHAKE}


def reasons(events: Iterable[Event]) -> set[str]:
    return {event.reason for event in events if isinstance(event, ConnectionEnd)}


def test_without_a_syn_the_handshake_is_enough(both: Ends) -> None:
    rows = [row for row in encrypted(plain("many-clients-any"), both) if not row.flags & SYN]
    found = read(rows, secrets=both.secrets())

    assert exchanges(found) == exchanges(read(plain("many-clients-any")))


def test_a_server_hello_that_was_lost_can_not_be_replaced(both: Ends) -> None:
    rows = encrypted(plain("librdkafka-100p"), both)
    hellos: dict[bytes, int] = {}
    for place, row in enumerate(rows):
        if row.payload and not from_higher_port(row):
            hellos.setdefault(row.connection, place)
    found = read([row for at, row in enumerate(rows) if at not in hellos.values()], secrets=both.secrets())

    assert {one.reason for one in found if isinstance(one, ConnectionEnd)} == {NO_HANDSHAKE}


def test_a_cipher_that_is_not_supported_is_named(folder: Path) -> None:
    configured = ends(folder / "cbc", "ECDHE-ECDSA-AES128-SHA256")
    found = read(encrypted(plain("librdkafka-100p"), configured), secrets=configured.secrets())

    assert {one.reason for one in found if isinstance(one, ConnectionEnd)} == {UNSUPPORTED}


def test_what_is_decrypted_need_not_be_kafka(both: Ends) -> None:
    talk = [
        row for row in plain("librdkafka-100p") if row.connection == plain("librdkafka-100p")[0].connection
    ]
    first = next(row for row in talk if row.payload)
    other = next(row for row in talk if row.payload and row.from_low != first.from_low)
    rows = [*talk[:2], replace(first, payload=b"GET / HTTP/1.1\r\n\r\n" * 9)]
    rows.append(replace(other, payload=b"HTTP/1.1 200 OK\r\n\r\n" * 9))
    found = read(encrypted(rows, both), secrets=both.secrets())

    assert end_of(found).reason == NOT_KAFKA
    assert end_of(found).client_bytes + end_of(found).broker_bytes == 9 * (18 + 19)


@pytest.mark.parametrize("cipher", [None, TLS_1_2[0], TLS_1_2[2]])
@pytest.mark.parametrize("name", CAPTURES)
def test_lost_packets_cost_what_they_cost_in_plain_text(folder: Path, name: str, cipher: str | None) -> None:
    """If packets are lost, at least 99 % of the exchanges are the same as in plain text.

    In this test each packet has complete TLS records, so the same Kafka bytes are missing with and without
    TLS.
    """
    configured = ends(folder / f"lost-{name}-{cipher}", cipher)
    chance = random.Random(7)
    kept = plain(name)
    lost = {place for place, row in enumerate(kept) if row.payload and chance.random() < 0.03}
    rows = encrypted(kept, configured, lost=lost)
    found = read(rows, secrets=configured.secrets())
    expected = read([row for place, row in enumerate(kept) if place not in lost])

    assert sum(end.gaps for end in expected if isinstance(end, ConnectionEnd)) > 10
    assert_bytes_add_up(found, rows)
    same = exchanges(found) & exchanges(expected)
    assert len(same) >= 0.99 * len(exchanges(expected))


@pytest.mark.parametrize("cipher", [None, TLS_1_2[0]])
def test_a_resumed_session_is_read_by_its_own_secrets(folder: Path, cipher: str | None) -> None:
    configured = ends(folder / f"resumed-{cipher}", cipher)
    first = Pipe(configured)
    first.handshake()
    first.send(b"x", client=False)
    configured.keylog.unlink()
    configured.client.keylog_filename = str(configured.keylog)
    rows = encrypted(plain("librdkafka-100p"), configured, session=first.client.session)
    handshake = sum(len(row.payload) for row in rows[:6])

    assert handshake < 2000
    assert values(read(rows, secrets=configured.secrets())) == values(read(plain("librdkafka-100p")))


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_broken_records_are_counted(data: st.DataObject) -> None:
    configured, rows = _small()
    broken = []
    for row in rows:
        how = data.draw(st.integers(0, 30))
        if row.payload and how == 0:
            continue
        if row.payload and how == 1:
            at = data.draw(st.integers(0, len(row.payload) - 1))
            flipped = row.payload[at] ^ data.draw(st.integers(1, 255))
            broken.append(replace(row, payload=row.payload[:at] + bytes([flipped]) + row.payload[at + 1 :]))
        elif row.payload and how == 2:
            at = data.draw(st.integers(0, len(row.payload) - 1))
            broken.append(replace(row, payload=row.payload[:at], missing=len(row.payload) - at))
        else:
            broken.append(row)
    found = read(broken, secrets=configured.secrets())

    true = {one["response"] for one in values(read(plain("librdkafka-100p"))) if "api_key" in one}
    whole = (one for one in values(found) if one.get("response") and not one["response_missing"])
    assert all(one["response"] in true for one in whole)
    assert_bytes_add_up(found, broken)


@cache
def _small() -> tuple[Ends, list[Row]]:
    configured = ends(Path(tempfile.mkdtemp()))
    return configured, encrypted(plain("librdkafka-100p")[:200], configured)
