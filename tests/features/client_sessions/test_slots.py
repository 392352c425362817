"""Cases 1 to 13 with a simulated clock, for the gateway's cache and for the model broker."""

import random

import numpy as np
import pytest

from proxy.features.client_sessions.cache import FetchSessionCache
from proxy.features.client_sessions.session import FetchSession
from tests.features.client_sessions.slot_cases import (
    CASES,
    OF_FOLLOWERS,
    PARTITIONS,
    TOPIC,
    Case,
    FetchSlots,
    Held,
    Slots,
)
from tests.features.client_sessions.test_cache import parts
from tests.model.broker import ModelBroker
from tests.model.sessions import SHARDS
from tests.model.wire import FetchRequest, FetchResponse, decode_response, encode_request


class OurSlots(Slots):
    """The session slots of the gateway's cache, in the form that the cases need."""

    followers = False

    def __init__(self, slots: int) -> None:
        super().__init__(1)
        self.cache = FetchSessionCache(random.Random(1).randint, slots=slots)
        self.now_ms = 0

    def create(self, size: int, *, privileged: bool) -> int:
        assert not privileged
        session = FetchSession(parts(size), uses_ids=False)
        return self.cache.create(session, self.now_ms)

    def touch(self, session_id: int, held: Held, forget: int) -> None:
        session = self.cache.get(session_id)
        assert session is not None
        gone = np.arange(held.size - forget, held.size, dtype=">u4").tobytes()
        session.partitions.forget([(b"t", gone)])
        self.cache.touch(session, self.now_ms)

    def has(self, session_id: int) -> bool:
        return self.cache.get(session_id) is not None

    def close(self, session_id: int) -> None:
        session = self.cache.get(session_id)
        assert session is not None
        self.cache.remove(session)

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def counted(self) -> int:
        return self.cache.partitions


def modelled(release: str, slots: int) -> FetchSlots:
    """Return a model broker's session slots. Release 2.8 has one session cache, 4.3 has several shards."""
    shards = SHARDS if release == "4.3" else 1
    broker = ModelBroker(release=release, slots=shards * slots)
    broker.create_topic(TOPIC, PARTITIONS)
    now_ms = [0]

    def exchange(request: FetchRequest) -> FetchResponse:
        return decode_response(broker.handle(encode_request(request), now_ms[0] / 1000), request.version)

    def wait(ms: int) -> None:
        now_ms[0] += ms

    return FetchSlots(shards, exchange, wait)


EVERY_CASE = pytest.mark.parametrize(("case", "slots"), CASES.items(), ids=[case.__name__ for case in CASES])
OUR_CASES = [(case, slots) for case, slots in CASES.items() if case not in OF_FOLLOWERS]


@pytest.mark.parametrize(("case", "slots"), OUR_CASES, ids=[case.__name__ for case, _ in OUR_CASES])
def test_our_slots(case: Case, slots: int) -> None:
    """Cases 1 to 13: the gateway's slots behave like those of a broker without followers."""
    ours = OurSlots(slots)
    case(ours)
    assert len(ours.cache) == 0


@pytest.mark.slow
@EVERY_CASE
@pytest.mark.parametrize("release", ["2.8", "4.3"])
def test_a_models_slots(case: Case, slots: int, release: str) -> None:
    """Cases 1 to 13: the session slots of a model broker behave like a broker's.

    The test uses the slots through fetches, as the live test does with a real broker.
    """
    case(modelled(release, slots))
