"""The formats of figures and names."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.session.decision import Reason
from proxy.text.printable import printable
from replay.capture.tls.reasons import NO_HANDSHAKE, NO_SECRETS, RENEGOTIATED, TLS, UNSUPPORTED
from replay.report import wording
from replay.simulate.outcome import CUT, NOT_UNDERSTOOD, UNPAIRED
from tests.replay.report import sample


@pytest.mark.parametrize(
    ("count", "written"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1_000, "1.00 kB"),
        (9_994, "9.99 kB"),
        (9_995, "10.0 kB"),
        (99_949, "99.9 kB"),
        (99_950, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (61_234_567_890, "61.2 GB"),
        (-45_600_000, "-45.6 MB"),
        (10**18, "1000 PB"),
    ],
)
def test_size(count: int, written: str) -> None:
    assert wording.size(count) == written


@given(st.integers(min_value=0, max_value=10**17))
def test_size_is_within_half_a_percent(count: int) -> None:
    value, unit = wording.size(count).split()
    scale = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}[unit]
    assert abs(float(value) * scale - count) <= count * 0.00501


@pytest.mark.parametrize(
    ("ratio", "written"),
    [
        (0.0, "0.0 %"),
        (0.0001, "<0.1 %"),
        (0.5, "50.0 %"),
        (0.9994, "99.9 %"),
        (0.99999, ">99.9 %"),
        (1.0, "100.0 %"),
        (-0.031, "-3.1 %"),
        (-0.0001, "-<0.1 %"),
    ],
)
def test_percent(ratio: float, written: str) -> None:
    assert wording.percent(ratio) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.0, "0 s"),
        (0.0004, "<0.001 s"),
        (0.0441, "0.044 s"),
        (9.86, "9.9 s"),
        (60, "1 min"),
        (185.2, "3 min 5 s"),
        (3_600, "1 h"),
        (3_661, "1 h 1 min"),
        (187_200, "2 d 4 h"),
        (86_401, "1 d"),
    ],
)
def test_duration(seconds: float, written: str) -> None:
    assert wording.duration(seconds) == written


def test_a_moment_is_told_in_utc() -> None:
    assert wording.moment("2026-11-20T23:30:00.999+01:00") == "2026-11-20 22:30:00 UTC"


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("billing-enricher", "billing-enricher"),
        ("Zürich 消費者", "Zürich 消費者"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("line\r\nline", r"line\r\nline"),
        ("abc\u202edcba", r"abc\u202edcba"),
        ("\udcff", r"\udcff"),
        ("\x00", r"\x00"),
    ],
)
def test_names_of_peers_are_printable(name: str, written: str) -> None:
    assert printable(name) == written
    assert wording.shown(name) == written


@given(st.text(st.characters()))
def test_no_name_of_a_peer_can_act(name: str) -> None:
    assert printable(name).isprintable()
    printable(name).encode()


def test_endless_and_missing_names() -> None:
    assert wording.shown("x" * 32_000) == "x" * wording.MAX_NAME + "..."
    assert wording.shown("x" * wording.MAX_NAME) == "x" * wording.MAX_NAME
    assert wording.shown("\x1b" * 32_000) == r"\x1b" * (wording.MAX_NAME // 4) + "..."
    assert wording.shown("") == "(none)"
    assert wording.shown("", empty="unknown") == "unknown"


def test_what_was_captured() -> None:
    assert wording.captured(sample.report()) == (
        "1 h from 2026-11-20 22:30:00 UTC: 36 Kafka connections in 2,345,678 packets, 1.23 GB of 12 files"
    )
    assert wording.captured(sample.empty()) == "0 Kafka connections in 0 packets, 24 B of 1 file"


def test_what_was_narrowed_and_seen_by_half() -> None:
    assert wording.narrowed({"ports": [], "hosts": [], "clients": [], "topics": []}) == ""
    assert wording.narrowed({"ports": [9092], "hosts": ["a"], "clients": ["\x1b"], "topics": ["t", "u"]}) == (
        r"Only port 9092; host a; client \x1b; topic t, u."
    )
    assert wording.unpaired(sample.report()) == (
        "9 requests without a response, 1 response without a request, 3 gaps in the streams"
    )
    assert wording.unpaired(sample.empty()) == ""


def test_each_policy_and_each_share_is_explained() -> None:
    assert set(wording.POLICY) == {"gateway", "always"}
    assert wording.SHARES.keys() == sample.report()["where"]["actual"].keys()


@pytest.mark.parametrize("reason", [Reason.NATIVE, NOT_UNDERSTOOD, UNPAIRED, CUT, "fetch v3", "error 56"])
def test_each_reason_of_the_engine_is_explained(reason: str) -> None:
    assert wording.meaning(reason)


def test_other_reasons_speak_for_themselves() -> None:
    assert wording.meaning("a reason of a later release") == ""


@pytest.mark.parametrize(
    ("amount", "written"),
    [
        (0.0, "0.00"),
        (0.0001, "<0.01"),
        (0.01, "0.01"),
        (-0.004, ">-0.01"),
        (-3.0, "-3.00"),
        (1234.5, "1,234.50"),
    ],
)
def test_price(amount: float, written: str) -> None:
    assert wording.price(amount) == written


def test_an_amount_has_its_currency_if_that_is_known() -> None:
    assert wording.amount(1234.5, "USD") == "1,234.50 USD"
    assert wording.amount(1234.5, "") == "1,234.50"
    assert (wording.per_gb(0.02, "USD"), wording.per_gb(0.02, "")) == ("0.02 USD per GB", "0.02 per GB")
    assert [wording.per_gb(given, "") for given in (0, 3.0, 2_500_000.0, 0.00000012, 0.01333333)] == [
        "0 per GB",
        "3 per GB",
        "2,500,000 per GB",
        "0.00000012 per GB",
        "0.01333333 per GB",
    ]


def next_step(
    *, kafka: int = 0, payload: int = 0, tls: int = 0, late: int = 0, other: int = 0, **more: Any
) -> str:
    """Return the advice for this payload: that of TLS connections, and the one of late and other ones."""
    reasons = {"": payload - tls, TLS: tls - late - other, NO_HANDSHAKE: late, NO_SECRETS: other}
    return wording.next_step(kafka=kafka, payload=reasons, **more)


@pytest.mark.parametrize(
    ("kafka", "payload", "tls", "told"),
    [
        (2, 100, 40, "Next: capture where consumers run"),
        (2, 0, 0, "Next: capture where consumers run"),
        (2, 100, 60, "Next: open the TLS connections with a key log"),
        (0, 0, 0, "Next: capture again: there is no TCP payload"),
        (
            0,
            100,
            50,
            "Next: open the TLS connections with a key log of their clients or brokers: --keylog FILE.",
        ),
        (0, 100, 49, "Next: name the port on which the brokers listen: --port N"),
    ],
)
def test_a_capture_without_a_fetch_has_a_next_step(kafka: int, payload: int, tls: int, told: str) -> None:
    assert next_step(kafka=kafka, payload=payload, tls=tls, packets=9).startswith(told)


def test_a_wrong_port_is_told_with_one_that_is_used() -> None:
    told = next_step(
        kafka=0, payload=0, tls=0, ports=[9092, 9093], other_ports={50001: 7, 33192: 9, 50002: 2}
    )

    assert "no connection uses port 9092 or 9093; most packets are on port 33192: --port 33192." in told
    assert "there is no packet." in next_step(kafka=0, payload=0, tls=0, ports=[9092], other_ports={})
    assert "Is 50001 the brokers' port?" in next_step(kafka=1, payload=9, tls=0, ports=[50001])


def test_a_wrong_host_is_no_reason_to_capture_again() -> None:
    told = next_step(kafka=0, payload=0, tls=0, packets=9, left_out=7, filters=["--host"])
    assert told.startswith("Next: name another host: --host leaves out 7 packets.")


def test_a_port_without_kafka_is_not_answered_with_the_option_that_was_given() -> None:
    told = next_step(kafka=0, payload=100, tls=0, ports=[80])

    assert "no connection of port 80 speaks Kafka. Without --port" in told
    assert "--port N" not in told


@pytest.mark.parametrize(
    ("kafka", "payload", "ports"), [(0, 0, []), (0, 100, []), (0, 100, [80]), (2, 100, [])]
)
def test_packets_that_are_not_read_are_the_next_step(kafka: int, payload: int, ports: list[int]) -> None:
    unread = {"MACsec": 3, "IP fragments": 1200}
    told = next_step(kafka=kafka, payload=payload, tls=0, ports=ports, unread=unread, packets=2406)

    assert told.startswith("Next: capture on a client's or a broker's host, on all interfaces")
    assert "1,203 of 2,406 packets are not read (IP fragments 1,200, MACsec 3)" in told


def test_packets_that_are_not_read_matter_less_than_others() -> None:
    unread = {"MACsec": 3}
    assert "name the port" in next_step(kafka=0, payload=100, tls=0, unread=unread, packets=13)
    assert "key log" in next_step(kafka=0, payload=100, tls=50, unread=unread, packets=6)


def test_filters_that_leave_out_all_fetches_are_named() -> None:
    told = next_step(kafka=2, payload=100, tls=0, filters=["--client", "--host"])

    assert told.startswith("Next: leave out --client and --host: Kafka was found, but no fetch that passes.")
    assert "--client" not in next_step(kafka=2, payload=100, tls=0)


def test_connections_that_began_before_the_capture_have_a_next_step_of_their_own() -> None:
    assert "before the clients connect" in next_step(kafka=0, payload=100, tls=90, late=45)
    assert "--keylog FILE" in next_step(kafka=0, payload=100, tls=90, late=44)


def test_a_key_log_of_other_connections_has_a_next_step_of_its_own() -> None:
    told = next_step(kafka=0, payload=100, tls=90, other=45)
    assert told.startswith("Next: find the key log of these TLS connections: the one that was given has no ")
    assert "open the TLS" in next_step(kafka=0, payload=100, tls=90, other=44)


@pytest.mark.parametrize(
    ("decrypted", "others", "told"),
    [
        (0, {}, ""),
        (0, {TLS: 3}, ""),
        (0, {NO_SECRETS: 3}, "TLS: 0 connections decrypted, 3 not (no secrets in the key log)"),
        (1200, {}, "TLS: 1,200 connections decrypted"),
        (
            1,
            {NO_SECRETS: 3, NO_HANDSHAKE: 2},
            "TLS: 1 connection decrypted, 3 not (no secrets in the key log), 2 not (handshake not captured)",
        ),
        (
            0,
            {UNSUPPORTED: 1, RENEGOTIATED: 2},
            "TLS: 0 connections decrypted, 1 not (version or cipher not supported), 2 not (renegotiated)",
        ),
    ],
)
def test_it_says_how_many_tls_connections_were_decrypted(
    decrypted: int, others: dict[str, int], told: str
) -> None:
    assert wording.encrypted(decrypted, others) == told
