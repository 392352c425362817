"""Reads end where the captured ones ended, at a target that has more records than in the captured moment."""

import pytest

from proxy.protocol.api import ApiKey
from replay.drive.options import TO_CAPTURED, TO_END, OffsetPolicy
from replay.drive.report import ApiFigures, DriveReport
from tests.frames import fetch
from tests.model.broker import ModelBroker
from tests.replay.drive.captured import Capture, batch, script
from tests.replay.drive.serving import serving
from tests.replay.drive.test_player import fetches, play

BATCH = len(batch(0))


def broker(records: int = 0) -> ModelBroker:
    found = ModelBroker()
    for partition in found.create_topic("t", 3).partitions.values():
        for number in range(records):
            partition.append(batch(number))
    return found


def following(version: int, *, session: bool) -> Capture:
    """Return the capture of a client that follows t. Its fetches find none, one or two new records."""
    here = broker()
    capture = Capture(here)
    partitions = here.topics["t"].partitions
    ends = listed = dict.fromkeys(partitions, 0)
    for at in range(12):
        grown = {place: each.log_end for place, each in partitions.items() if each.log_end > ends[place]}
        if session and at:
            (known,) = here.cache.sessions
            place = known, at
        else:
            place = 0, 0 if session else -1
        wanted = listed if session and at else ends
        capture.say(fetch(version, *(("t", *each) for each in wanted.items()), session=place), at)
        ends = ends | grown
        listed = grown
        for _ in range(at % 3):
            partitions[at % 2].append(batch(0))
    return capture


def of(report: DriveReport, side: str) -> ApiFigures:
    (found,) = [row for row in report["figures"] if (row["side"], row["api"]) == (side, "Fetch")]
    return found


@pytest.mark.parametrize("policy", [OffsetPolicy.KEEP, OffsetPolicy.LATEST, OffsetPolicy.EARLIEST])
@pytest.mark.parametrize(("version", "session"), [(11, False), (12, False), (11, True), (12, True)])
async def test_as_many_record_bytes_are_played_as_captured(
    policy: OffsetPolicy, version: int, session: bool
) -> None:
    capture = following(version, session=session)
    async with serving(broker(records=50)) as served:
        report = await play(served, script(capture), offsets=policy, read_to=TO_CAPTURED)
        more = await play(served, script(capture), offsets=policy, read_to=TO_END)

    assert of(report, "capture")["record_bytes"] == of(report, "target")["record_bytes"] == 10 * BATCH
    assert (of(report, "target")["errors"], of(report, "target")["partition_errors"]) == ({}, {})
    assert of(more, "target")["record_bytes"] > 3 * of(more, "capture")["record_bytes"]


async def test_an_offset_that_the_target_does_not_have_stays_as_it_is() -> None:
    """Otherwise a comparison would not find that records were deleted."""
    capture = Capture(broker())
    capture.say(fetch(12, ("t", 0, 0)), 0)
    there = broker(records=5)
    there.topics["t"].partitions[0].log_start = 3
    async with serving(there) as served:
        report = await play(served, script(capture), offsets=OffsetPolicy.KEEP)

    assert of(report, "target")["partition_errors"] == {"1": 1}


async def test_a_captured_response_that_is_not_known_limits_nothing() -> None:
    capture = Capture(broker())
    exchange = capture.say(fetch(12, ("t", 0, 0)), 0)
    exchange.response_missing = 5
    async with serving(broker(records=5)) as served:
        await play(served, script(capture), offsets=OffsetPolicy.KEEP)

    (sent,) = fetches(served)
    assert sent.topics[0].partitions[0].fetch_offset == 0
    assert len(served.of(ApiKey.FETCH)) == 1
