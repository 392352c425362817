"""The benchmark of transparent mode: its stub of a broker, its clients, and its figures for each window."""

import pytest

from proxy.core.connection import Connection
from proxy.core.eligibility import SessionLimits
from proxy.protocol.fetch_layout import LAYOUTS
from proxy.protocol.fetch_response import FetchResponseWalk
from tools.bench import transparent
from tools.bench.connections import TURNS, FetchingConnection, fetches
from tools.bench.frames import VERSION, fetch_request
from tools.bench.stub import NODE_ID, PARTITIONS, SESSION_ID, TOPIC_ID, TOPICS, SessionStub, metadata
from tools.bench.transparent import KINDS, ModeWindow
from tools.kafka.metadata import read_metadata

WHERE = ("10.84.0.2", 9092)


class Kept:
    """A transport that keeps the written bytes."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data


def stub(size: int = 0) -> tuple[SessionStub, Kept]:
    broker, kept = SessionStub(WHERE, size), Kept()
    broker.connection_made(kept)  # type: ignore[arg-type]  # all of a transport that it uses
    return broker, kept


def walked(response: bytes) -> FetchResponseWalk:
    walk = FetchResponseWalk(LAYOUTS[VERSION], 1, keep=True)
    walk.feed(response)
    assert walk.done
    return walk


class TestStub:
    @pytest.mark.parametrize(
        ("session", "session_id", "partitions"),
        [((0, -1), 0, PARTITIONS), ((0, 0), SESSION_ID, PARTITIONS), ((SESSION_ID, 3), SESSION_ID, 0)],
    )
    def test_a_fetch_is_answered_by_its_session(
        self, session: tuple[int, int], session_id: int, partitions: int
    ) -> None:
        broker, kept = stub()
        broker.data_received(fetch_request(7, TOPICS, session=session))
        walk = walked(kept.written)
        assert (walk.session_id, walk.partitions) == (session_id, partitions)
        assert kept.written[4:8] == b"\0\0\0\7"

    def test_records_are_in_every_response(self) -> None:
        broker, kept = stub(5_000)
        broker.data_received(fetch_request(7, [], session=(SESSION_ID, 1)))
        walk = walked(kept.written)
        assert (walk.partitions, walk.record_bytes) == (1, 5_000)

    def test_requests_come_in_any_pieces(self) -> None:
        broker, kept = stub()
        both = fetch_request(7, TOPICS) + fetch_request(8, [], session=(SESSION_ID, 1))
        for start in range(0, len(both), 1000):
            broker.data_received(both[start : start + 1000])
        size = 4 + int.from_bytes(kept.written[:4])
        assert [walked(kept.written[:size]).partitions, walked(kept.written[size:]).partitions] == [100, 0]

    def test_its_cluster_is_itself(self) -> None:
        assert read_metadata(metadata(*WHERE)).brokers == {NODE_ID: WHERE}

    def test_a_gateway_before_it_makes_a_session_of_what_the_clients_ask(self) -> None:
        core, (broker, kept) = Connection(sessions=SessionLimits(max_sessions=1), resolve=None), stub()
        for request in fetches(TOPIC_ID, PARTITIONS, 0):
            core.receive_client(request, 0.0)
            for sent in core.drain_broker():
                broker.data_received(bytes(sent))
            core.receive_broker(kept.written, 0.0)
            kept.written = b""
            response = b"".join(map(bytes, core.drain_client()))
            assert walked(response).partitions == PARTITIONS
        assert core.status().session_id == SESSION_ID


class TestClient:
    def test_it_asks_again_when_a_response_is_whole(self) -> None:
        requests = fetches(TOPIC_ID, 3, 0)
        client, kept = FetchingConnection(requests), Kept()
        client.paused = False
        client.connection_made(kept)  # type: ignore[arg-type]  # as above
        client.fetch()
        response = b"\0\0\0\6" + b"answer"
        for at in range(len(response)):
            assert client.responses == 0
            client.data_received(response[at : at + 1])
        assert (client.responses, client.bytes) == (1, len(response))
        assert kept.written == requests[0] + requests[1][:8] + b"\0\0\0\1" + requests[1][12:]

    def test_at_rest_it_takes_its_response_and_asks_no_more(self) -> None:
        requests = fetches(TOPIC_ID, 3, 0)
        client, kept = FetchingConnection(requests), Kept()
        client.connection_made(kept)  # type: ignore[arg-type]  # as above
        client.fetch()
        assert (kept.written, client.answered.is_set()) == (b"", True)
        client.paused = False
        client.fetch()
        client.paused = True
        assert not client.answered.is_set()
        client.data_received(b"\0\0\0\6" + b"answer")
        assert (client.responses, client.answered.is_set(), kept.written) == (1, True, requests[0])

    @pytest.mark.parametrize(("got", "cut"), [(b"", False), (b"\0\0", True), (b"\0\0\0\6an", True)])
    def test_the_end_inside_a_response_is_noted(self, got: bytes, cut: bool) -> None:
        client = FetchingConnection(fetches(TOPIC_ID, 1, 0))
        client.paused = False
        client.data_received(got)
        client.connection_lost(None)
        assert client.cut is cut

    def test_its_list_turns(self) -> None:
        assert len(set(fetches(TOPIC_ID, 100, 0))) == TURNS
        assert len(fetches(TOPIC_ID, 1, 500)) == 1


class TestTable:
    def test_modes_are_held_against_explicit_windows_of_the_same_round(self) -> None:
        rounds = {
            "explicit": [ModeWindow(1.0, 100.0), ModeWindow(2.0, 50.0), ModeWindow(4.0, 25.0)],
            "redirect": [ModeWindow(1.02, 99.0), ModeWindow(2.04, 49.5), ModeWindow(8.0, 10.0)],
            "tproxy": [ModeWindow(0.9, 101.0), ModeWindow(1.8, 51.0), ModeWindow(3.6, 26.0)],
        }

        cpu, kernel, times_cpu, pace, times_pace = transparent._table(
            KINDS[0], rounds, {"tproxy": 40.0}, 0.5
        ).rows

        assert cpu.values == {"explicit": 2.0, "redirect": 2.04, "tproxy": 1.8}
        assert times_cpu.values == {"explicit": 1.0, "redirect": 1.02, "tproxy": 0.9}
        assert kernel.values == {"tproxy": 40.0}
        assert pace.values["redirect"] == 49.5
        assert times_pace.values["redirect"] == 0.99
        assert (times_cpu.met, times_pace.met) == (True, True)
