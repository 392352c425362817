"""Responses with changed addresses or versions, and refused logins, which are logged."""

import pytest

from proxy.core.connection_state import ConnectionState
from proxy.core.eligibility import Eligibility, SessionLimits
from proxy.core.events import LoginRefused, Refusal
from proxy.core.histograms import Measured
from proxy.core.in_flight import Forward, Handler
from proxy.core.leaders import Leaders
from proxy.core.own import Probe
from proxy.core.responses import (
    AddressRewriting,
    CutVersions,
    Login,
    RewriteAddresses,
    Rewriting,
    clamped,
    readdressed,
)
from proxy.protocol.addresses import Resolve
from proxy.protocol.api import ApiKey
from proxy.protocol.primitives import ProtocolError
from tests.playbook import Playbook, api_versions, request, response

DESCRIBE_QUORUM = 55


def gateway(node_id: int, _host: str, _port: int, /) -> tuple[str, int]:
    return "gw", 19_092 + node_id


def nowhere(_node_id: int, _host: str, _port: int, /) -> None:
    """Return no address for any broker."""


def metadata(host: bytes, port: int, correlation: int = 7) -> bytes:
    """Build a Metadata v0 response that names broker 2 and no topic."""
    body = b"\0\0\0\1" + b"\0\0\0\2" + len(host).to_bytes(2) + host + port.to_bytes(4) + b"\0\0\0\0"
    return response(correlation, body)


def test_a_host_of_another_length() -> None:
    got = b"".join(readdressed(metadata(b"broker-2.example", 9092), ApiKey.METADATA, 0, gateway))
    assert got == metadata(b"gw", 19_094)


def test_nobody_to_tell_leaves_no_address() -> None:
    got = b"".join(readdressed(metadata(b"broker-2.example", 9092), ApiKey.METADATA, 0, nowhere))
    assert b"broker-2.example" not in got
    assert len(got) == 4 + int.from_bytes(got[:4])


def test_what_is_no_such_response_is_refused() -> None:
    with pytest.raises(ProtocolError):
        readdressed(metadata(b"b", 1)[:-5], ApiKey.METADATA, 0, gateway)


def test_api_versions_are_cut_and_read() -> None:
    _, told = api_versions("4.3")
    pieces, features = clamped(told, 0)
    assert b"".join(pieces) == told
    assert features is not None
    assert features.fetch_max == 18
    more = response(1, bytes.fromhex("0000 00000001 0001 0004 0014"))
    assert b"".join(clamped(more, 0)[0]) == response(1, bytes.fromhex("0000 00000001 0001 0004 0012"))


def test_api_versions_that_are_not_understood_pass() -> None:
    told = response(1, b"nonsense")
    assert clamped(told, 3) == ([told], None)


# --- as they come ---------------------------------------------------------------------------------


class Scene:
    """A connection and its rewritten responses."""

    def __init__(self, resolve: Resolve | None = gateway) -> None:
        self.eligibility = Eligibility(SessionLimits(max_sessions=1))
        limits = SessionLimits(max_sessions=1)
        self.state = ConnectionState(limits, Measured(), foreign=False)
        self.rewriting = (
            AddressRewriting(self.state, self.eligibility, resolve, lambda _: False, Leaders())
            if resolve is not None
            else Rewriting(self.state, self.eligibility)
        )

    @property
    def refused(self) -> list[tuple[str, str]]:
        """Return (reason, message) of the fault that ended the connection.

        The list is empty if there was no fault.
        """
        fault = self.state.fault
        return [] if fault is None else [(reason, fault.reason) for reason in self.state.tally.refused]

    def receive(self, handler: Handler, frame: bytes, chunk: int) -> bytes:
        got = b""
        for at in range(0, len(frame), chunk):
            last = at + chunk >= len(frame)
            got += b"".join(handler.feed(frame[at : at + chunk], last=last))
        assert handler.buffered == 0
        return got


@pytest.mark.parametrize("chunk", [8, 11, 1000])
def test_a_response_is_held_until_it_is_whole(chunk: int) -> None:
    scene = Scene()
    handler = scene.rewriting.handler(ApiKey.METADATA, 0)
    assert scene.receive(handler, metadata(b"broker-2.example", 9092), chunk) == metadata(b"gw", 19_094)
    assert scene.refused == []


@pytest.mark.parametrize("chunk", [8, 1000])
def test_a_response_that_is_not_understood_is_refused(chunk: int) -> None:
    scene = Scene()
    assert scene.receive(scene.rewriting.handler(ApiKey.METADATA, 0), response(7, b"nonsense"), chunk) == b""
    assert [refusal for refusal, _ in scene.refused] == [Refusal.NOT_UNDERSTOOD]


def test_a_response_too_large_to_be_held_is_refused() -> None:
    scene = Scene()
    assert scene.rewriting.handler(ApiKey.METADATA, 0).feed(b"\x20\0\0\4head", last=False) == []
    assert scene.refused == [(Refusal.TOO_LARGE, "a METADATA v0 response of 536870920 bytes")]


def test_version_ranges_too_large_to_be_held_pass() -> None:
    scene = Scene()
    handler = scene.rewriting.handler(18, 0)
    assert handler.feed(b"\x20\0\0\4head", last=False) == [b"\x20\0\0\4head"]
    assert (handler.forwards, handler.buffered, scene.refused) == (True, 0, [])
    assert handler.feed(b"more", last=False) == [b"more"]


@pytest.mark.parametrize(
    ("api_key", "version", "resolve", "kind"),
    [
        (18, 0, None, CutVersions),
        (ApiKey.METADATA, 0, gateway, RewriteAddresses),
        (ApiKey.METADATA, 99, gateway, Forward),
        (ApiKey.METADATA, 0, None, Forward),
        (12, 0, gateway, Forward),
        (12, -1, gateway, Forward),
        (-1, -5, gateway, Forward),
        (17, 1, gateway, Login),
    ],
)
def test_what_becomes_of_a_response(
    api_key: int, version: int, resolve: Resolve | None, kind: type[Handler]
) -> None:
    assert type(Scene(resolve).rewriting.handler(api_key, version)) is kind


@pytest.mark.parametrize("chunk", [7, 1000])
def test_what_the_broker_can_is_learned_from_what_the_gateway_asked(chunk: int) -> None:
    scene = Scene()
    _, told = api_versions("4.3")
    assert scene.receive(Probe(scene.state, scene.eligibility), told, chunk) == b""
    assert scene.eligibility.features == clamped(told, 0)[1]


@pytest.mark.parametrize(
    ("api_key", "version", "head"),
    [
        (ApiKey.SASL_HANDSHAKE, 1, b""),
        (ApiKey.SASL_AUTHENTICATE, 1, b""),
        (ApiKey.SASL_AUTHENTICATE, 2, b"\0"),
    ],
)
def test_what_the_broker_refuses_is_told_each_time(api_key: int, version: int, head: bytes) -> None:
    play = Playbook()
    for correlation, code in enumerate((0, 58, 0, 58), 1):
        play.client(asked := request(api_key, version, correlation, head + b"token")).to_broker(asked)
        told = response(correlation, head + code.to_bytes(2) + b"why")
        play.broker(told, chunk=len(told) - 2).to_client(told)
        assert play.events(LoginRefused) == [LoginRefused(error_code=code, mechanism="")] * (code > 0)


@pytest.mark.parametrize(("chunk", "mechanism"), [(1000, "SCRAM-SHA-256"), (14, "")])
def test_the_mechanism_is_that_of_the_last_handshake(chunk: int, mechanism: str) -> None:
    """If the handshake comes in pieces, the mechanism is not known."""
    play = Playbook()
    named = b"\0\x0dSCRAM-SHA-256"
    for key, said, code in ((ApiKey.SASL_HANDSHAKE, named, 0), (ApiKey.SASL_AUTHENTICATE, b"", 58)):
        play.client(asked := request(key, 1, key, said), chunk=chunk).to_broker(asked)
        play.broker(told := response(key, code.to_bytes(2) + b"why")).to_client(told)
    assert play.events(LoginRefused) == [LoginRefused(error_code=58, mechanism=mechanism)]


def test_too_little_of_a_response_is_not_told() -> None:
    play = Playbook()
    play.client(asked := request(ApiKey.SASL_AUTHENTICATE, 1, 1)).to_broker(asked)
    play.broker(told := response(1, b"\0")).to_client(told)
    assert play.events() == []


@pytest.mark.parametrize("chunk", [1, 9, 1000])
def test_addresses_lead_through_the_gateway(chunk: int) -> None:
    play = Playbook(resolve=gateway)
    asked = request(ApiKey.METADATA, 0, 5, b"\0\0\0\0")
    play.client(asked).to_broker(asked)
    play.broker(metadata(b"broker-2.example", 9092, 5), chunk=chunk).to_client(metadata(b"gw", 19_094, 5))
    assert play.connection.buffered == 0


def test_addresses_that_are_not_understood_end_the_connection() -> None:
    """A response whose addresses can't be read ends the connection, so that no broker address leaks."""
    play = Playbook(resolve=gateway)
    asked = request(ApiKey.METADATA, 0, 5, b"\0\0\0\0") + request(12, 0, 6)
    play.client(asked).to_broker(asked)
    play.broker(response(5, b"\0\0\0\1nonsense") + response(6, b"ok")).nothing()
    assert play.connection.fault is not None
    assert play.connection.fault.side == "broker"
    assert "METADATA v0 response that is not understood" in play.connection.fault.reason
    assert play.connection.tally.refused == {"response not understood": 1}
