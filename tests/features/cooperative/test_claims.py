"""Tests of the owners of key ranges over time, against a model that checks all owners at each step."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.features.cooperative.claims import Claims, Client, Overlap
from proxy.features.cooperative.positions import TopicPartition
from proxy.features.cooperative.ranges import KeyRanges, overlap

LOW: KeyRanges = ((0, 9),)
HIGH: KeyRanges = ((10, 19),)
BOTH: KeyRanges = ((0, 4), (15, 19))
PLACE: TopicPartition = (b"orders", 0)
ONE: Client = ("one", b"a")
TWO: Client = ("two", b"a")


def test_a_client_has_nothing_when_its_last_connection_is_closed() -> None:
    claims = Claims()
    for _ in range(2):
        claims.opened(ONE)
    claims.claim(ONE, b"g", [(PLACE, LOW)])
    claims.closed(ONE)
    assert claims.connected(ONE)
    assert claims.overlap(TWO, b"g", [(PLACE, BOTH)]) == Overlap(ONE, PLACE)
    claims.closed(ONE)
    assert not claims.connected(ONE)
    assert claims.overlap(TWO, b"g", [(PLACE, BOTH)]) is None
    assert repr(claims) == "<Claims clients=0 partitions=0>"


_CLIENTS = st.sampled_from([("h", b"a"), ("h", b"b"), ("i", b"a")])
_STEPS = st.one_of(
    st.tuples(st.just("opens"), _CLIENTS),
    st.tuples(st.just("closes"), _CLIENTS),
    st.tuples(
        st.just("claims"),
        _CLIENTS,
        st.sampled_from([b"g", b"other"]),
        st.integers(0, 2),
    ),
)


@given(
    st.fixed_dictionaries(
        {client: st.sampled_from([LOW, HIGH, BOTH]) for client in [("h", b"a"), ("h", b"b"), ("i", b"a")]}
    ),
    st.lists(_STEPS, max_size=30),
)
def test_no_hash_has_two_owners(ranges: dict[Client, KeyRanges], steps: list[tuple[object, ...]]) -> None:
    claims = Claims()
    connections = dict.fromkeys(ranges, 0)
    have: dict[Client, set[tuple[bytes, TopicPartition]]] = {client: set() for client in ranges}
    for step in steps:
        match step:
            case ("opens", tuple(client)):
                claims.opened(client)
                connections[client] += 1
            case ("closes", tuple(client)) if connections[client]:
                claims.closed(client)
                connections[client] -= 1
                if not connections[client]:
                    have[client].clear()
            case ("claims", tuple(client), bytes(group), int(partition)) if connections[client]:
                place = b"orders", partition
                lanes = [(place, ranges[client])]
                in_the_way = {
                    other
                    for other, mine in have.items()
                    if other != client and (group, place) in mine and overlap(ranges[client], ranges[other])
                }
                found = claims.overlap(client, group, lanes)
                if (group, place) in have[client]:
                    assert not in_the_way
                assert (found.holder in in_the_way) if found else not in_the_way
                if found is None:
                    claims.claim(client, group, lanes)
                    have[client].add((group, place))
