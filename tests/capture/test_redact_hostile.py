"""``--capture-records no`` in hostile conversations: no byte of a planted secret is in the capture.

Requests may have the same correlation ids, and versions may be unknown. Responses may come in any order,
incomplete, twice, or with the id of another request. Secrets are planted where records and credentials are.
For the review (docs/users/security.md): whether it keeps records.
"""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.capture.no_tap import BROKER, CLIENT
from proxy.capture.redact import Redactor
from proxy.protocol.api import ApiKey
from tests.examples import examples
from tests.frames import VERSIONS, entry, fetch, fetch_response, framed
from tests.playbook import request, response

SECRETS = [
    b"\xc3\x8e" + bytes(range(128, 190)),
    b"hunter2 correct horse battery staple, 64 bytes of it, no space",
    b"0123456789" * 6,
]
WINDOW = 16
"""This many bytes of a secret count as a leak. The head of an invalid frame has up to 14 bytes."""


@dataclass(frozen=True)
class Asked:
    """A request, and a broker's response to this request."""

    request: bytes
    response: bytes
    correlation: int


class Seen:
    """A capture of one conversation, read without knowledge of the conversation."""

    def __init__(self) -> None:
        self._redactor = Redactor()
        self.bytes = {CLIENT: b"", BROKER: b""}

    def passes(self, by: int, data: bytes) -> None:
        """Let the redactor see bytes that one side sends."""
        for kept, cut in self._redactor.redact(by, data):
            self.bytes[by] += bytes(kept) + bytes(cut)

    def ends(self) -> None:
        """End both directions."""
        for by in (CLIENT, BROKER):
            for kept, cut in self._redactor.end(by):
                self.bytes[by] += bytes(kept) + bytes(cut)

    def shows(self, secret: bytes) -> bool:
        """Return whether any part of a secret (`WINDOW` bytes) is in the capture."""
        whole = self.bytes[CLIENT] + bytes(WINDOW) + self.bytes[BROKER]
        return any(secret[at : at + WINDOW] in whole for at in range(len(secret) - WINDOW + 1))


def _old_fetch(version: int, correlation: int, secret: bytes) -> Asked:
    """Return a fetch of v0 to v3. The gateway does not read these versions, whose layout is different."""
    body = (1).to_bytes(4) + b"\0\1t" + (1).to_bytes(4) + bytes(6 + 8) + len(secret).to_bytes(4) + secret
    answer = response(correlation, (bytes(4) if version else b"") + body)
    return Asked(request(ApiKey.FETCH, version, correlation, b"\xff\xff\xff\xff" * 4), answer, correlation)


def _fetch(version: int, correlation: int, secret: bytes) -> Asked:
    entries = [entry(0, 5), entry(1, 7, records=secret), entry(2, 7, records=secret * 3)]
    answer = fetch_response(version, ("t", entries), ("u", entries), correlation_id=correlation)
    return Asked(fetch(version, ("t", 0), ("t", 1), correlation=correlation), answer, correlation)


def _unknown_fetch(version: int, correlation: int, secret: bytes) -> Asked:
    known = _fetch(18, correlation, secret)
    asked = known.request[:6] + version.to_bytes(2) + known.request[8:]
    return replace(known, request=asked + b"", response=known.response)


def _produce(version: int, correlation: int, secret: bytes, acks: int) -> Asked:
    transactional = b"" if version < 3 else b"\xff\xff" if version < 9 else b"\0"
    body = (
        (b"\0" if version >= 9 else b"") + transactional + acks.to_bytes(2, signed=True) + bytes(8) + secret
    )
    answer = response(correlation, b"\0" * 9) if acks else b""
    return Asked(request(ApiKey.PRODUCE, version, correlation, body), answer, correlation)


def _other(api_key: int, correlation: int, asked: bytes, answered: bytes) -> Asked:
    return Asked(request(api_key, 1, correlation, asked), response(correlation, answered), correlation)


@st.composite
def conversation(draw: st.DrawFn, secret: bytes) -> list[Asked]:
    """Draw requests with their responses. Few correlation ids are used, so some are in flight twice."""
    asked = []
    for _ in range(draw(st.integers(1, 6))):
        correlation = draw(st.integers(0, 2))
        kind = draw(
            st.sampled_from(["fetch", "fetch", "old", "unknown", "produce", "metadata", "sasl", "key"])
        )
        if kind == "fetch":
            asked.append(_fetch(draw(st.sampled_from(VERSIONS)), correlation, secret))
        elif kind == "old":
            asked.append(_old_fetch(draw(st.integers(0, 3)), correlation, secret))
        elif kind == "unknown":
            asked.append(_unknown_fetch(draw(st.integers(19, 40)), correlation, secret))
        elif kind == "produce":
            version = draw(st.sampled_from([0, 2, 3, 8, 9, 13, 99]))
            asked.append(_produce(version, correlation, secret, draw(st.sampled_from([-1, 0, 1]))))
        elif kind == "metadata":
            asked.append(_other(ApiKey.METADATA, correlation, b"\0\0\0\0", bytes(40)))
        elif kind == "sasl":
            asked.append(_other(ApiKey.SASL_AUTHENTICATE, correlation, secret, secret))
        else:
            asked.append(_other(9_999, correlation, secret, secret))
    return asked


def _mangled(data: st.DataObject, frames: list[bytes]) -> bytes:
    """Return bytes of responses from a broker that breaks the protocol."""
    frames = data.draw(st.permutations(frames)) if data.draw(st.booleans()) else frames
    out = b""
    for frame in frames:
        what = data.draw(st.sampled_from(["whole"] * 6 + ["cut", "short", "long", "twice", "none"]))
        if what == "cut":  # it ends before its length says so
            out += frame[: data.draw(st.integers(0, len(frame)))]
        elif what == "short" and len(frame) > 12:  # its length ends before it does
            out += data.draw(st.integers(4, len(frame) - 5)).to_bytes(4) + frame[4:]
        elif what == "long":
            out += framed(frame[4:] + frame)
        else:
            out += frame * {"twice": 2, "none": 0}.get(what, 1)
    return out


def _pieces(data: st.DataObject, stream: bytes) -> list[bytes]:
    if data.draw(st.booleans()):
        return [stream[at : at + 1] for at in range(len(stream))]
    at = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[start:end] for start, end in zip([0, *at], [*at, len(stream)], strict=True)]


@pytest.mark.parametrize("secret", SECRETS, ids=["bytes", "text", "digits"])
@given(st.data())
@examples(300)
def test_no_secret_is_in_a_capture_whatever_a_broker_sends(secret: bytes, data: st.DataObject) -> None:
    seen, sizes = Seen(), [0, 0]
    for _ in range(data.draw(st.integers(1, 3))):
        asked = data.draw(conversation(secret))
        sent = b"".join(each.request for each in asked)
        answered = _mangled(data, [each.response for each in asked])
        for by, stream in ((CLIENT, sent), (BROKER, answered)):
            sizes[by] += len(stream)
            for chunk in _pieces(data, stream):
                seen.passes(by, chunk)
    seen.ends()

    assert not seen.shows(secret)
    assert [len(seen.bytes[by]) for by in (CLIENT, BROKER)] == sizes


@pytest.mark.parametrize("secret", SECRETS, ids=["bytes", "text", "digits"])
def test_a_fetch_and_a_metadata_in_flight_under_one_id(secret: bytes) -> None:
    """If a fetch and a Metadata request with equal ids are in flight, no secret is in the capture.

    Only the order shows which response belongs to which request, and nothing proves that the order is right.
    """
    for asked in ([_fetch(12, 7, secret), _metadata(7)], [_metadata(7), _fetch(12, 7, secret)]):
        for answered in (asked, asked[::-1]):
            seen = Seen()
            for each in asked:
                seen.passes(CLIENT, each.request)
            for each in answered:
                seen.passes(BROKER, each.response)
            assert not seen.shows(secret)
            assert seen.bytes[CLIENT] == b"".join(each.request for each in asked)


def _metadata(correlation: int) -> Asked:
    return _other(ApiKey.METADATA, correlation, b"\0\0\0\0", b"metadata" * 5)


def test_an_id_that_is_free_again_is_in_no_doubt() -> None:
    seen = Seen()
    for asked in (_fetch(12, 7, SECRETS[0]), _metadata(7), _fetch(12, 7, SECRETS[0])):
        seen.passes(CLIENT, asked.request)
        seen.passes(BROKER, asked.response)
        assert seen.bytes[BROKER].endswith(asked.response.replace(SECRETS[0], bytes(len(SECRETS[0]))))


def test_a_produce_without_acks_is_no_place_in_the_order() -> None:
    """After a Produce request with acks=0, the next response belongs to the next request (case 86).

    A broker sends no response to such a Produce request.
    """
    asked = [_produce(9, 1, SECRETS[0], 0), _metadata(2), _produce(9, 3, SECRETS[0], 1), _metadata(4)]
    for size in (1, 7, 1000):
        seen = Seen()
        stream = b"".join(each.request for each in asked)
        for at in range(0, len(stream), size):
            seen.passes(CLIENT, stream[at : at + size])
        for each in asked:
            seen.passes(BROKER, each.response)
        answered = b"".join(each.response for each in asked)
        assert not seen.shows(SECRETS[0])
        assert seen.bytes[BROKER] == answered  # that of Produce is zeros


def test_behind_a_response_out_of_order_nothing_is_kept() -> None:
    first, second, third = _metadata(1), _metadata(2), _metadata(3)
    seen = Seen()
    for asked in (first, second, third):
        seen.passes(CLIENT, asked.request)
    for asked in (first, third, second):
        seen.passes(BROKER, asked.response)

    kept = first.response + third.response[:8]
    whole = first.response + third.response + second.response
    assert seen.bytes[BROKER] == kept + bytes(len(whole) - len(kept))


def test_a_fetch_response_of_another_version_than_asked_is_left_out_from_its_start() -> None:
    asked = fetch(12, ("t", 0), correlation=1)
    answered = _fetch(4, 1, SECRETS[1]).response
    for size in (1, 9, len(answered)):
        seen = Seen()
        seen.passes(CLIENT, asked)
        for at in range(0, len(answered), size):
            seen.passes(BROKER, answered[at : at + size])
        assert seen.bytes[BROKER] == answered[:8] + bytes(len(answered) - 8)


def test_a_fetch_response_that_is_cut_off_has_its_head_alone() -> None:
    asked = _fetch(12, 1, SECRETS[0])
    seen = Seen()
    seen.passes(CLIENT, asked.request)
    seen.passes(BROKER, asked.response[:100])
    assert seen.bytes[BROKER] == asked.response[:8]
    seen.ends()
    assert seen.bytes[BROKER] == asked.response[:8] + bytes(92)


@pytest.mark.parametrize("api_key", [ApiKey.PRODUCE, ApiKey.METADATA])
def test_a_client_id_that_is_longer_than_its_request_is_not_kept(api_key: int) -> None:
    frame = framed(api_key.to_bytes(2) + b"\0\1\0\0\0\1" + b"\x7f\xff" + SECRETS[0])
    seen = Seen()
    seen.passes(CLIENT, frame)
    assert seen.bytes[CLIENT] == frame[:14] + bytes(len(SECRETS[0]))


def test_a_response_that_ends_before_its_length_is_followed_by_the_next() -> None:
    secret = SECRETS[2]
    metadata = _other(ApiKey.METADATA, 0, bytes(4), bytes(40))
    sasl = _other(ApiKey.SASL_AUTHENTICATE, 1, secret, secret)
    seen = Seen()
    seen.passes(CLIENT, metadata.request)
    seen.passes(BROKER, metadata.response[:5])
    seen.passes(CLIENT, sasl.request)
    seen.passes(BROKER, sasl.response)
    seen.ends()
    assert not seen.shows(secret)
    assert len(seen.bytes[BROKER]) == 5 + len(sasl.response)


def test_an_empty_fetch_response_is_not_the_beginning_of_the_next() -> None:
    secret = SECRETS[2]
    asked = _other(ApiKey.SASL_AUTHENTICATE, 1, secret, b"")
    body = bytes(4) + (1).to_bytes(4) + len(secret).to_bytes(2) + secret + bytes(4)  # as of a fetch v4
    seen = Seen()
    seen.passes(CLIENT, fetch(4, ("t", 0), correlation=0) + asked.request)
    seen.passes(BROKER, response(0) + response(1, body))
    seen.ends()
    assert not seen.shows(secret)


def test_the_tags_of_a_fetch_response_that_ends_early_are_of_the_next_response() -> None:
    secret = SECRETS[2]
    told = fetch_response(16, ("t", [entry(0, 5)]), tags=((9, bytes(80)),), correlation_id=0)
    sasl = _other(ApiKey.SASL_AUTHENTICATE, 1, secret, 2 * secret)
    seen = Seen()
    seen.passes(CLIENT, fetch(16, ("t", 0), correlation=0) + sasl.request)
    seen.passes(BROKER, told[:-70] + sasl.response)
    seen.ends()
    assert not seen.shows(secret)
