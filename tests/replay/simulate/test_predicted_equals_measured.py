"""`measure` predicts from the client's side the same numbers that a gateway counts on the broker's side.

The tests compare frames, bytes and partitions, for any history in which the broker keeps its sessions.

Histories with events that a client can't see are excluded: lost sessions, errors that occur only in a
session, the time of a topic's deletion while responses were throttled or a fetch waited behind a gateway, and
the meaning of error 3 in Kafka 1.1 (topic or partition).
"""

import os
from dataclasses import fields
from typing import Any, get_args

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from proxy.core.events import FetchKind
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.measure.collected import collect
from replay.measure.rows import RowFilter, groups
from replay.simulate.engine import Engine, Policy
from replay.simulate.outcome import Outcome
from tests.core.test_expanded_equals_direct import API_VERSIONS, PARTITIONS, RELEASES, AnyClientAnyBroker
from tests.examples import examples
from tests.model.gate import framed, unframed
from tests.model.wire import FetchRequest, decode_response, encode_request

EXAMPLES = int(os.environ.get("LAW_EXAMPLES", "50"))
_MICROSECOND = 1000
_SESSION_BYTES = "session_request_bytes", "session_response_bytes"


def exchange(number: int, request: bytes, response: bytes, times: tuple[int, int]) -> Exchange:
    """Return a captured exchange. `request` and `response` are frames without their length field."""
    return Exchange(
        connection="c",
        client="c:1",
        broker="b:1",
        number=number,
        client_id="",
        software="",
        api_key=int.from_bytes(request[:2]),
        api_version=int.from_bytes(request[2:4]),
        correlation_id=int.from_bytes(request[4:8]),
        request_time=times[0],
        response_time=times[1],
        request_bytes=4 + len(request),
        response_bytes=4 + len(response),
        request=framed(request),
        response=[framed(response)],
    )


def values(outcome: Outcome) -> dict[str, Any]:
    """Return the values of an outcome, for comparison with another outcome."""
    parsed = {"request", "response", "run"}
    return {each.name: getattr(outcome, each.name) for each in fields(Outcome) if each.name not in parsed}


class PredictedEqualsMeasured(AnyClientAnyBroker):
    """The random histories of the gateway's own test. The test records them on the client's side.

    A broker looks up a topic's name when a partition is added to a session. If the topic was deleted before
    that, the broker reports error 100. If the topic is deleted later, the broker reports error 3. If
    responses were throttled in between, nothing shows which event came first.
    """

    @initialize(
        release=st.sampled_from(RELEASES),
        seed=st.integers(0, 2**16),
        version=st.integers(4, 18),
        topics=st.sampled_from([1, 2]),
    )
    def begin(self, release: str, seed: int, version: int, topics: int) -> None:
        self.captured: list[Exchange] = []
        self.clock = 1_000_000_000
        super().begin(
            release=release,
            slots=1000,
            seed=seed,
            cuts=False,
            version=version,
            topics=topics,
            max_sessions=1000,
            asks=False,
            leaves_midway=False,
        )

    def poll(self, times: int, follows: bool) -> None:
        if not self.captured:
            self.record([API_VERSIONS])
        for _ in range(times):
            self.ask([self.request()])
            if follows:
                self.seek_to_end()

    def ask(self, requests: list[FetchRequest], other: bytes | None = None) -> None:
        frames = [encode_request(request) for request in requests]
        if other is not None:
            frames.insert(1, other)
        self.record(frames)

    def record(self, frames: list[bytes]) -> None:
        """Send requests through the gateway, and record the exchanges.

        All requests are sent before the first one is answered.
        """
        self.clock = max(self.clock, round(self.now * 1_000_000_000)) + _MICROSECOND
        asked, told = self.clock, self.clock + _MICROSECOND
        self.clock = told
        for frame in frames:
            self.gate.connection.receive_client(framed(frame), asked / 1_000_000_000)
        responses = unframed(self.gate.settle(told / 1_000_000_000))
        for frame, response in zip(frames, responses, strict=True):
            self.captured.append(exchange(len(self.captured), frame, response, (asked, told)))

    def teardown(self) -> None:
        if not hasattr(self, "gate"):
            return
        self.gate.connection.close_session(self.now)
        self.gate.settle(self.now)
        self.compare(self.predict(self.clock + _MICROSECOND))

    def predict(self, closed_time: int) -> list[Outcome]:
        """Return the engine's prediction from the client's side, with the end of the connection.

        Check that the results of both policies stay the same if each fetch is processed on its own (`plain`).
        """
        outcomes, by_always = self.play(closed_time)
        always, by_gateway = self.play(closed_time, "always")
        looked_at, plain_by_always = self.play(closed_time, plain=True)
        plain_always, plain_by_gateway = self.play(closed_time, "always", plain=True)
        assert [*map(values, outcomes)] == [*map(values, looked_at)]
        assert [*map(values, always)] == [*map(values, plain_always)]
        assert (by_always, by_gateway) == (plain_by_always, plain_by_gateway)
        end = ConnectionEnd(connection="c", client="c:1", broker="b:1", closed=True, closed_time=closed_time)
        for policy in get_args(Policy):
            found = [
                collect(groups([*self.captured, end], RowFilter(policy=policy, plain=plain)))
                for plain in (False, True)
            ]
            assert found[0] == found[1]
        return outcomes

    def play(
        self, closed_time: int, policy: Policy = "gateway", *, plain: bool = False
    ) -> tuple[list[Outcome], tuple[int, int]]:
        """Return the outcomes of `policy`, and the bytes of requests and responses with the other policy."""
        engine = Engine(policy, plain=plain)
        outcomes = [outcome for exchange in self.captured for outcome in engine.add(exchange)]
        end = ConnectionEnd(connection="c", client="c:1", broker="b:1", closed=True, closed_time=closed_time)
        rest, closing = engine.end(end)
        outcomes += [*rest, *filter(None, [closing])]
        assert engine.differing == 0
        others = engine.drain_other()
        sizes = [sum(getattr(other, name) for other in others) for name in _SESSION_BYTES]
        return outcomes, (sizes[0], sizes[1])

    def compare(self, outcomes: list[Outcome]) -> None:
        left = [outcome for outcome in outcomes if not outcome.eligible and outcome.kind is not None]
        broker = self.gate.connection.tally.broker

        def predicted(session: str, actual: str) -> int:
            passed: int = sum(getattr(outcome, actual) for outcome in left)
            through: int = sum(getattr(outcome, session) for outcome in outcomes)
            return passed + through

        measured: dict[str, Any] = {
            "requests": broker.fetch_request_bytes,
            "responses": broker.fetch_response_bytes,
            "requested": broker.partitions_requested,
            "answered": broker.partitions_answered,
            "records": broker.fetch_record_bytes,
            "incremental": broker.fetches[FetchKind.INCREMENTAL],
            "close": broker.fetches[FetchKind.CLOSE],
        }
        assert measured == {
            "requests": sum(o.exchange.request_bytes for o in left)
            + sum(o.session_request_bytes for o in outcomes),
            "responses": sum(o.exchange.response_bytes for o in left)
            + sum(o.session_response_bytes for o in outcomes),
            "requested": predicted("session_partitions_requested", "partitions_requested"),
            "answered": predicted("session_partitions_answered", "partitions_answered"),
            "records": predicted("session_record_bytes", "record_bytes"),
            "incremental": sum(o.incremental for o in outcomes) + sum(o.kind == "incremental" for o in left),
            "close": sum(o.closes for o in outcomes) + sum(o.kind == "close" for o in left),
        }

    # What a client can't see

    @rule(wanted=st.lists(st.tuples(AnyClientAnyBroker.names, st.integers(0, PARTITIONS)), max_size=14))
    def choose(self, wanted: list[tuple[str, int]]) -> None:
        """Choose partitions for the next fetch. With Kafka 1.1, skip unknown partitions of a known topic.

        Kafka 1.1 returns error 3 for them, as for unknown topics. But a response lists unknown topics last.
        """
        most = PARTITIONS - (self.broker.release == "1.1.1")
        super().choose([(name, index) for name, index in wanted if index <= most])

    @rule(name=AnyClientAnyBroker.names)
    def delete_topic(self, name: str) -> None:
        """Delete a topic, except after a throttled response."""
        last = self.captured[-1]
        response = decode_response(b"".join(last.response)[4:], last.api_version)
        if response.topics or not response.throttle_time_ms:
            super().delete_topic(name)

    def restart(self) -> None:
        """Do nothing: a restart would lose sessions."""

    lose_count = mistake_names_for_ids = fail_once_in_a_session = fail = None  # type: ignore[assignment]  # no rules
    others_take_slots = compress = recreate_topic = None  # type: ignore[assignment]  # no rules


TestPredictedEqualsMeasured = PredictedEqualsMeasured.TestCase
TestPredictedEqualsMeasured.settings = examples(EXAMPLES, stateful_step_count=25)


def test_a_response_that_comes_when_the_client_has_left_is_had_again_without_a_session() -> None:
    """A client leaves before a response that makes the gateway repeat the fetch.

    The fetch is sent again without a session. The broker's session reports a deleted topic. If the client had
    stayed, the gateway would request a new session.
    """
    history = PredictedEqualsMeasured()
    history.begin(release="4.3.0", seed=0, version=16, topics=2)
    history.poll(3, follows=True)
    history.clock += 1000
    asked, left, told = (history.clock + 1000 * step for step in (1, 2, 3))
    frame = encode_request(history.request())
    gate = history.gate
    gate.connection.receive_client(framed(frame), asked / 1_000_000_000)
    gate.connection.close_session(left / 1_000_000_000)
    history.delete_topic("a")
    (response,) = unframed(gate.settle(told / 1_000_000_000))
    history.captured.append(exchange(len(history.captured), frame, response, (asked, told)))
    outcomes = history.predict(left)
    assert [outcomes[-2].incremental, outcomes[-2].full, outcomes[-2].sessionless] == [1, 0, 1]
    history.compare(outcomes)


def test_a_fetch_that_is_had_again_is_answered_after_the_one_sent_meanwhile() -> None:
    """A fetch gets error entries for a deleted topic, so the gateway sends it again.

    The client has sent another fetch in the meantime. The prediction orders the responses like the gateway:
    first the response to the later fetch, then the response to the fetch that was sent again.
    """
    history = PredictedEqualsMeasured()
    history.begin(release="4.3.0", seed=0, version=16, topics=1)
    history.delete_topic("a")
    history.fetch_without_waiting(between=False)
    history.fetch()
    history.gate.close(history.now)
    outcomes = history.predict(history.clock + _MICROSECOND)
    again, meanwhile, later, _ = outcomes[-4:]
    assert (again.incremental, again.full) == (1, 1)
    assert (meanwhile.sessionless, meanwhile.reason) == (1, "session busy")
    assert later.incremental == 1
    history.compare(outcomes)


def test_a_fetch_of_another_version_does_not_repeat_the_last_one() -> None:
    """Both versions have the same layout. A gateway begins a new session for it."""
    history = PredictedEqualsMeasured()
    history.begin(release="2.8.2", seed=0, version=8, topics=1)
    for _ in range(2):
        history.fetch()
        history.learn_ids()
    history.fetch()
    history.change_version(version=7)
    history.fetch()
    history.teardown()


def test_when_a_topic_went_is_not_to_be_seen_behind_a_throttle() -> None:
    """If responses are throttled, two histories with different gateway counts can give the same capture.

    So the time of a topic's deletion can't be seen, and such histories are excluded.
    """
    captured, measured = [], []
    for added_first in (True, False):
        history = PredictedEqualsMeasured()
        history.begin(release="4.3.0", seed=0, version=16, topics=1)
        history.throttle(40)
        if not added_first:
            del history.broker.topics["a"]
        history.choose([("a", 0), ("a", 4)])
        history.fetch()
        history.broker.topics.pop("a", None)
        history.pause_or_resume("a", 0)
        history.fetch()
        history.throttle(0)
        history.fetch()
        history.gate.close(history.now)
        captured.append(history.captured)
        measured.append(history.gate.connection.tally.broker.fetches)
    assert captured[0] == captured[1]
    assert measured[0] != measured[1]


class _WithoutGateway(PredictedEqualsMeasured):
    """Captures what the broker answers to the client's own fetches, while the gateway sends its own."""

    def record(self, frames: list[bytes]) -> None:
        direct = [self.broker.handle(frame, self.now) for frame in frames]
        super().record(frames)
        for each, response in zip(self.captured[-len(frames) :], direct, strict=True):
            each.response, each.response_bytes = [framed(response)], 4 + len(response)


def _delete_while_a_fetch_waits(history: PredictedEqualsMeasured) -> None:
    """Delete a topic as a broker does: it first drops one partition, and this ends the wait.

    So the response has error 3 for this partition alone. The gateway sends the fetch again. That fetch comes
    after the deletion.
    """
    history.begin(release="4.3.0", seed=0, version=16, topics=1)
    history.poll(3, follows=True)
    topics, waits = history.broker.topics, iter([True])
    del topics["a"].partitions[0]

    def delete(_: bytes) -> None:
        if not next(waits, False):
            topics.pop("a", None)

    history.gate.before = delete
    history.poll(4, follows=True)


def test_a_topic_that_goes_while_a_fetch_waits_ends_one_session() -> None:
    """The broker looks up names for the second session after the deletion, so it reports error 100."""
    history = _WithoutGateway()
    _delete_while_a_fetch_waits(history)
    history.teardown()


def test_when_a_topic_went_is_not_to_be_seen_behind_a_gateway() -> None:
    """The gateway sends the fetch again, so its client does not see how many partitions had an error."""
    waiting, later = PredictedEqualsMeasured(), PredictedEqualsMeasured()
    _delete_while_a_fetch_waits(waiting)
    later.begin(release="4.3.0", seed=0, version=16, topics=1)
    later.poll(3, follows=True)
    later.delete_topic("a")
    later.poll(4, follows=True)
    assert waiting.captured == later.captured
    counted = [each.gate.connection.tally.broker for each in (waiting, later)]
    assert counted[0].fetches == counted[1].fetches
    assert counted[0].partitions_answered < counted[1].partitions_answered
