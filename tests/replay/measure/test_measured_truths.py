"""`measure` gives the known true figures of real captures, even if taps or tools have changed the captures.

All steps except Spark run: files, segments, streams, frames, exchanges, engine, table, report.
"""

import gzip
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random

import pytest
import zstandard
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from replay.capture.kafka.exchange import Exchange, is_cut
from replay.report.model import Report
from replay.simulate.engine import Policy
from tests.examples import examples, few
from tests.replay.capture import crafting
from tests.replay.capture.crafting import CAPTURES, NAMES, Frame
from tests.replay.report.sample import assert_adds_up
from tests.replay.tables import connections, measured
from tests.replay.truths import assert_true, truth

_SYN_FIN_RST = 7


def original(name: str) -> list[bytes]:
    return [crafting.capture(name)]


def frames_of(name: str) -> list[Frame]:
    return crafting.take_apart(crafting.capture(name))


def dressed(frames: Sequence[Frame], dress: str = "ethernet") -> list[bytes]:
    return [crafting.pcap(*crafting.relink(frames, dress))]


def split(frames: Sequence[Frame], files: int) -> list[bytes]:
    """Write frames into several files. Every second file is a pcapng."""
    edges = [len(frames) * number // files for number in range(files + 1)]
    parts = [crafting.relink(frames[edges[n] : edges[n + 1]], "ethernet") for n in range(files)]
    return [(crafting.pcapng if n % 2 else crafting.pcap)(*part) for n, part in enumerate(parts)]


def late(frames: Sequence[Frame], nanoseconds: int) -> list[Frame]:
    """Return the packets in another order: each packet is up to `nanoseconds` late, and keeps its time.

    Captures from queues of several cores are like this.
    """
    chance = Random(nanoseconds)
    return sorted(frames, key=lambda frame: frame.time + chance.random() * nanoseconds)


def shuffled(frames: Sequence[Frame], width: int) -> list[Frame]:
    """Return the packets in another order: each packet is up to `width` places late.

    The time of this delay is not limited.
    """
    chance = Random(width)
    places = [place + chance.random() * width for place in range(len(frames))]
    return [frame for _, frame in sorted(zip(places, frames, strict=True), key=lambda pair: pair[0])]


AS_IT_IS = "as it is"
SHUFFLED = "in another order"
FORMS: dict[str, Callable[[str], list[bytes]]] = {
    AS_IT_IS: original,
    "gzipped": lambda name: [gzip.compress(crafting.capture(name))],
    "zstd": lambda name: [zstandard.compress(crafting.capture(name))],
    "pcapng": lambda name: [crafting.pcapng(*crafting.relink(frames_of(name), "ethernet"))],
    "big-endian, nanoseconds": lambda name: [
        crafting.pcap(*crafting.relink(frames_of(name), "ethernet"), order=">", nano=True)
    ],
    "VLAN": lambda name: dressed(frames_of(name), "vlan"),
    "two VLAN tags": lambda name: dressed(frames_of(name), "qinq"),
    "SLL": lambda name: dressed(frames_of(name), "sll"),
    "SLL2": lambda name: dressed(frames_of(name), "sll2"),
    "null": lambda name: dressed(frames_of(name), "null-little"),
    "raw IP": lambda name: dressed(frames_of(name), "raw"),
    "in 9 files": lambda name: split(frames_of(name), 9),
    "seen twice": lambda name: dressed(crafting.repeat(frames_of(name), 1, 1)),
    "reordered": lambda name: dressed(late(frames_of(name), 400_000)),
    SHUFFLED: lambda name: dressed(shuffled(frames_of(name), 4)),
    "wrapped": lambda name: dressed(crafting.wrap(frames_of(name), 0x9000_0000)),
}


def written(folder: Path, files: Sequence[bytes]) -> list[Path]:
    paths = [folder / f"{number}.pcap" for number in range(len(files))]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    return paths


@cache
def undisturbed(name: str, policy: Policy) -> Report:
    return measured(policy, CAPTURES / f"{name}.pcap")


@pytest.mark.parametrize("form", few(FORMS, "reordered"))
@pytest.mark.parametrize("name", few(NAMES, "librdkafka-midstream", "many-clients-any"))
def test_the_truth_comes_out(name: str, form: str, tmp_path: Path) -> None:
    assert_true(measured("always", *written(tmp_path, FORMS[form](name))), name)


@pytest.mark.parametrize("form", few(FORMS, "reordered"))
@pytest.mark.parametrize("name", few(NAMES, "librdkafka-midstream"))
def test_the_gateways_policy_gives_the_same_however_it_was_captured(
    name: str, form: str, tmp_path: Path
) -> None:
    report = measured("gateway", *written(tmp_path, FORMS[form](name)))
    same = undisturbed(name, "gateway")

    assert report["fetch"] == same["fetch"]
    assert report["by_topic"] == same["by_topic"]
    assert report["not_eligible"] == same["not_eligible"]


@pytest.mark.parametrize("name", NAMES)
def test_what_the_gateways_policy_saves_and_its_counts_say_why(name: str) -> None:
    """The policy `gateway` saves at least 99 % of what `always` saves, and its counts explain the saving.

    `gateway` may save more than `always`: if a client's list grows, `gateway` does not add the partitions one
    by one.
    """
    gateway, always = undisturbed(name, "gateway")["fetch"], undisturbed(name, "always")["fetch"]
    went = gateway["sessions"]

    assert gateway["saved_bytes"] >= 0.99 * max(0, always["saved_bytes"])
    assert went["incremental"] or not gateway["saved_bytes"]
    assert went["repair_bytes"] == 0
    assert went["full"] + went["incremental"] + went["sessionless"] == gateway["eligible"]["exchanges"]
    assert went["full"] <= always["sessions"]["full"]
    assert went["incremental"] <= always["sessions"]["incremental"]
    assert gateway["actual"] == always["actual"]


def interior_lost(frames: Sequence[Frame], share: float, seed: int) -> list[Frame]:
    """Lose a share of the packets, but never the first or the last one of a direction.

    So each lost packet leaves a gap that is reported.
    """
    chance = Random(seed)
    ends = {frame.data[12:24]: frame for frame in frames}
    return [
        frame
        for frame in frames
        if frame.data[33] & _SYN_FIN_RST or ends[frame.data[12:24]] is frame or chance.random() >= share
    ]


@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["librdkafka-100p", "java-100p", "many-clients-any"]),
    share=st.sampled_from([0.002, 0.02, 0.2]),
    seed=st.integers(0, 1 << 30),
)
def test_with_packets_lost_the_report_still_adds_up(
    name: str, share: float, seed: int, tmp_path: Path
) -> None:
    frames = interior_lost(frames_of(name), share, seed)
    report = measured("gateway", *written(tmp_path, dressed(frames)))
    totals, readable = truth(name)["totals"], report["readable"]

    assert_adds_up(report)
    assert (
        readable["readable_bytes"] + readable["unreadable_bytes"]
        == totals["request_stream_bytes"] + totals["response_stream_bytes"]
    )
    assert readable["readable_bytes"] == captured_in_exchanges(tmp_path)
    whole = undisturbed(name, "gateway")["fetch"]["actual"]
    assert all(count <= whole[what] for what, count in report["fetch"]["actual"].items())  # type: ignore[literal-required]  # its own keys


@pytest.mark.parametrize("snaplen", few((40, 57, 60, 90, 400, 3000), 60, 400))
@pytest.mark.parametrize("name", ["librdkafka-midstream", "many-clients-any"])
def test_with_packets_cut_the_report_still_adds_up(name: str, snaplen: int, tmp_path: Path) -> None:
    chance = Random(snaplen)
    frames = [
        crafting.cut([frame], snaplen)[0] if chance.random() < 0.7 else frame for frame in frames_of(name)
    ]
    report = measured("gateway", *written(tmp_path, [crafting.pcap(frames, crafting.RAW)]))

    assert_adds_up(report)
    assert report["readable"]["readable_bytes"] == captured_in_exchanges(tmp_path)


def captured_in_exchanges(folder: Path) -> int:
    """Return how many bytes of all exchanges were captured."""
    exchanges = (
        event for events in connections(folder / "0.pcap") for event in events if isinstance(event, Exchange)
    )
    return sum(
        one.request_bytes
        - one.request_missing
        + one.response_bytes
        - one.response_missing
        - sum(len(piece) for piece in one.response if is_cut(piece) and not one.response_missing)
        for one in exchanges
    )
