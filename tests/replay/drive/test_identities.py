"""Requests get the ids that the target has given, in place of those that the captured cluster gave."""

from typing import Any

import pytest

from proxy.protocol.api import ApiKey, request_header
from proxy.protocol.messages import read, structs
from replay.drive.identities import Identities
from replay.drive.script import Step
from replay.protocol.naming import SCHEMAS, given
from tests.replay.drive.captured import request
from tests.replay.drive.test_batches import batch
from tools.kafka import raw

TOPIC = raw.string("t")


def step(frame: bytes, response: bytes = b"") -> Step:
    """Return a request with its captured response."""
    api_key, version, _, _, body = request_header(frame, 4)
    return Step(
        api_key=api_key,
        version=version,
        frame=frame,
        body=body,
        identities=given(api_key, version, response) if response else None,
    )


def sent(identities: Identities, api_key: int, version: int, body: bytes) -> dict[str, Any]:
    """Return what the request names when it is sent."""
    one = step(request(api_key, version, body))
    found = read(SCHEMAS[api_key], api_key, version, identities.frame(one, one.frame), one.body, whole=False)
    names: dict[str, Any] = {}
    for struct, _ in structs(found):
        names |= {name: value for name, value in struct.items() if not isinstance(value, list)}
    return names


def joined(member: str, generation: int) -> bytes:
    """Return a JoinGroup response (v0)."""
    return raw.frame(
        bytes(4 + 2) + number(generation) + raw.string("range") + raw.string("x") + raw.string(member)
    )


def given_producer(id_: int, epoch: int) -> bytes:
    """Return an InitProducerId response (v0)."""
    return raw.frame(bytes(4 + 4 + 2) + id_.to_bytes(8) + epoch.to_bytes(2))


def number(value: int) -> bytes:
    return value.to_bytes(4, signed=True)


@pytest.fixture
def identities() -> Identities:
    found = Identities(b"-own", b"-mine")
    for api_key, captured, now in (
        (ApiKey.JOIN_GROUP, joined("a", 3), joined("bb", 1)),
        (ApiKey.INIT_PRODUCER_ID, given_producer(1000, 4), given_producer(7, 0)),
    ):
        found.learn(step(request(api_key, 0), captured), now)
    return found


def heartbeat(generation: int, member: str) -> bytes:
    return raw.string("g") + number(generation) + raw.string(member)


def test_a_member_has_its_id_and_its_generation_at_the_target(identities: Identities) -> None:
    assert sent(identities, ApiKey.HEARTBEAT, 0, heartbeat(3, "a")) == {
        "group": b"g-own",
        "generation": 1,
        "member": b"bb",
    }
    assert sent(identities, ApiKey.HEARTBEAT, 0, heartbeat(2, "a"))["generation"] == 2
    assert sent(identities, ApiKey.HEARTBEAT, 0, heartbeat(3, "c"))["member"] == b"c"


def commit(member: str) -> bytes:
    """Return an OffsetCommit request (v7) of a static member."""
    place = number(0) + bytes(8) + number(17) + raw.string("")
    names = raw.string("g") + number(3) + raw.string(member) + raw.string("i")
    return names + raw.array([TOPIC + raw.array([place])])


def test_a_commit_of_no_member_of_the_target_is_that_of_no_member(identities: Identities) -> None:
    """The coordinator accepts it, as from a consumer that assigns its partitions itself."""
    mapped = {"member": b"bb", "generation": 1, "instance": b"i"}
    unknown = {"member": b"", "generation": -1, "instance": None}

    assert sent(identities, ApiKey.OFFSET_COMMIT, 7, commit("a")).items() >= mapped.items()
    assert sent(identities, ApiKey.OFFSET_COMMIT, 7, commit("c")).items() >= unknown.items()


def test_a_read_of_committed_offsets_names_no_member_of_the_captured_group(identities: Identities) -> None:
    group = raw.compact_string("g") + raw.compact_string("c") + number(3) + raw.compact_array([]) + b"\0"

    found = sent(identities, ApiKey.OFFSET_FETCH, 9, raw.compact_array([group]) + b"\0\0")

    assert found == {"group": b"g-own", "member": None, "generation": -1}


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (
            ApiKey.LIST_OFFSETS,
            4,
            number(-1) + b"\0" + raw.array([TOPIC + raw.array([number(0) + number(17) + bytes(8)])]),
        ),
        (
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            2,
            raw.array([TOPIC + raw.array([number(0) + number(17) + number(17)])]),
        ),
        (ApiKey.OFFSET_COMMIT, 7, commit("a")),
    ],
)
def test_no_leader_epoch_of_the_capture_is_sent(
    identities: Identities, api_key: int, version: int, body: bytes
) -> None:
    """After an election, a broker responds to an older epoch with error 74."""
    assert sent(identities, api_key, version, body)["leader_epoch"] == -1


def test_a_producer_has_its_id_and_its_epoch_at_the_target(identities: Identities) -> None:
    end = raw.string("tx") + (1000).to_bytes(8) + (4).to_bytes(2) + b"\1"

    assert sent(identities, ApiKey.END_TXN, 0, end) == {
        "transaction": b"tx-mine",
        "producer_id": 7,
        "producer_epoch": 0,
    }


def test_records_have_the_id_of_their_producer(identities: Identities) -> None:
    written = batch((1000, 4, 17), payload=b"x")
    place = number(0) + number(len(written)) + written
    produce = raw.string("tx") + bytes(6) + raw.array([TOPIC + raw.array([place])])

    assert sent(identities, ApiKey.PRODUCE, 3, produce)["records"] == batch((7, 0, 17), payload=b"x")


@pytest.mark.parametrize(("key_type", "key"), [(0, b"name-own"), (1, b"name-mine")])
def test_a_coordinator_is_found_by_the_own_id(identities: Identities, key_type: int, key: bytes) -> None:
    found = sent(identities, ApiKey.FIND_COORDINATOR, 1, raw.string("name") + bytes([key_type]))

    assert found["group"] == key


def test_a_response_that_does_not_parse_gives_no_ids(identities: Identities) -> None:
    identities.learn(step(request(ApiKey.JOIN_GROUP, 0), joined("a", 4)), raw.frame(bytes(7)))

    assert sent(identities, ApiKey.HEARTBEAT, 0, heartbeat(3, "a"))["member"] == b"bb"
