"""In explicit mode, no response gives a client the real address of a broker, with any version up to Kafka
4.3.
"""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.events import Fault, Refusal
from proxy.core.responses import MAX_KEPT
from proxy.protocol.api import ApiKey, is_flexible
from proxy.protocol.schemas import CONFINED, REWRITTEN
from tests.examples import examples
from tests.playbook import Playbook, api_versions, request, response
from tests.protocol.kio_messages import encode, message_class, messages

DIRECT: Final = (b"broker-1.example", b"h" * 130)
"""Host names in the generated messages. They are long enough to be found reliably in other bytes."""
ADDRESSED: Final = [
    pytest.param(key, version, id=f"{ApiKey(key).name}-v{version}")
    for key, (oldest, last) in CONFINED.items()
    if key in REWRITTEN
    for version in range(max(oldest, 3 if key == ApiKey.PRODUCE else 0), last + 1)
]
OFFERED_TO_4_3: Final = {
    ApiKey.PRODUCE: range(14),
    ApiKey.FETCH: range(19),
    ApiKey.METADATA: range(14),
    ApiKey.FIND_COORDINATOR: range(7),
    ApiKey.DESCRIBE_QUORUM: range(3),
    ApiKey.DESCRIBE_CLUSTER: range(3),
    ApiKey.SHARE_FETCH: range(1, 3),
    ApiKey.SHARE_ACKNOWLEDGE: range(1, 3),
    ApiKey.VOTE: range(1),
    ApiKey.BEGIN_QUORUM_EPOCH: range(1),
    ApiKey.END_QUORUM_EPOCH: range(1),
    ApiKey.FETCH_SNAPSHOT: range(1),
    ApiKey.UPDATE_RAFT_VOTER: range(0),
}


def through(node_id: int, _host: str, _port: int, /) -> tuple[str, int] | None:
    """Map broker N to port 19092+N of the host gw. Brokers 2 and -1 have no address there."""
    return None if node_id in {2, -1} else ("gw", 19_092 + node_id % 1000)


def answer(api_key: int, version: int, body: bytes) -> bytes:
    tags = b"\0" if is_flexible(api_key, version) else b""
    return response(5, tags + body)


def asked(play: Playbook, api_key: int, version: int) -> Playbook:
    """Send a request, and check that it is forwarded to the broker."""
    body = (
        b"\0" * 9 if api_key != ApiKey.PRODUCE else (b"\0\0" if version >= 9 else b"\xff\xff") + b"\0\1" * 9
    )
    frame = request(api_key, version & 0xFFFF, 5, body)
    return play.client(frame).to_broker(frame)


@pytest.mark.parametrize("api_key", OFFERED_TO_4_3, ids=lambda key: key.name)
def test_a_version_whose_addresses_may_not_be_found_is_refused(api_key: ApiKey) -> None:
    """Trap 5: if a version may have addresses that the gateway can't find, the gateway closes the connection.

    A broker does the same for a version that it does not offer (fetch-semantics 1.7).
    """
    for version in (-1, *range(25)):
        frame = request(api_key, version & 0xFFFF, 5, b"\0\0\0\1" * 4)
        play = Playbook(resolve=through).client(frame)
        sent, offered = play.takes_broker(), version in OFFERED_TO_4_3[api_key]
        assert (sent == frame, play.connection.fault is None) == (offered, offered), version
        if not offered:
            fault = Fault(side="client", reason=f"{api_key.name} v{version}, which is not offered")
            assert play.connection.fault == fault
            assert play.connection.tally.refused == {Refusal.VERSION: 1}
        direct = Playbook().client(frame)
        assert direct.takes_broker() == frame
        assert direct.connection.fault is None


def test_what_may_be_asked_is_what_is_offered() -> None:
    assert set(CONFINED) == set(OFFERED_TO_4_3)
    for key, (lowest, highest) in CONFINED.items():
        assert range(lowest, highest + 1) == OFFERED_TO_4_3[ApiKey(key)]


@pytest.mark.parametrize(("api_key", "version"), ADDRESSED)
def test_no_direct_address_reaches_a_client(api_key: int, version: int) -> None:
    """A response that is cut at any place or has an extra byte is rewritten, or the connection ends."""

    @examples(4)
    @given(messages(message_class(api_key, version)), st.data())
    def check(message: Any, data: st.DataObject) -> None:
        body = encode(message)
        cut = body[: data.draw(st.integers(0, len(body)))]
        for damaged in (body, cut, body + b"\1"):
            told = answer(api_key, version, damaged)
            play = asked(Playbook(resolve=through), api_key, version).broker(
                told, chunk=data.draw(st.integers(7, 500))
            )
            got, fault = play.takes_client(), play.connection.fault
            assert not any(host in got for host in DIRECT), (damaged, got)
            assert (fault is None) != bool(play.connection.tally.refused)
            assert bool(got) is (fault is None)
            direct = asked(Playbook(), api_key, version).broker(told)
            assert direct.takes_client() == told

    check()


def test_one_that_is_too_large_to_be_kept() -> None:
    play = asked(Playbook(resolve=through), ApiKey.METADATA, 1)
    play.broker((MAX_KEPT + 1).to_bytes(4) + b"\0\0\0\5" + b"direct").nothing()
    assert play.connection.tally.refused == {Refusal.TOO_LARGE: 1}
    assert "METADATA v1 response of 268435461 bytes" in str(play.connection.fault)
    direct = asked(Playbook(), ApiKey.METADATA, 1)
    told = (MAX_KEPT + 1).to_bytes(4) + b"\0\0\0\5" + b"direct"
    direct.broker(told).to_client(told)


def test_a_client_agrees_on_no_version_that_is_refused() -> None:
    """The ApiVersions response for the client lists no version that the gateway refuses.

    The test uses the share groups of 4.0, and for each API the version after the last known version.
    """
    ranges = {key: (0, last + 1) for key, (_, last) in CONFINED.items()} | {78: (0, 0), 79: (0, 1)}
    body = b"\0\0" + len(ranges).to_bytes(4)
    body += b"".join(n.to_bytes(2, signed=True) for key, ends in ranges.items() for n in (key, *ends))
    question, _ = api_versions("4.3")
    told = response(0, body)
    for play, confined in ((Playbook(resolve=through), True), (Playbook(), False)):
        play.client(question).to_broker(question)
        got = play.broker(told).takes_client()[14:]
        offered = {
            int.from_bytes(got[at : at + 2]): range(
                int.from_bytes(got[at + 2 : at + 4]), int.from_bytes(got[at + 4 : at + 6]) + 1
            )
            for at in range(0, len(got), 6)
        }
        if confined:
            assert all(set(versions) <= set(OFFERED_TO_4_3[ApiKey(key)]) for key, versions in offered.items())
            assert (78 in offered, list(offered[79]), 82 in offered) == (False, [1], False)
        else:
            assert offered == {key: range(low, high + 1) for key, (low, high) in ranges.items()} | {
                0: range(14),
                1: range(19),
            }
