"""The runs of clients, brokers and faults: what counts as lost, doubled or starved.

Only the parts that need no broker are tested.
"""

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tools.kafka.ports import free_ports
from tools.zones.brokers import ELSEWHERE, HERE, PARTITIONS, led_elsewhere, replicas
from tools.zones.outcome import TIGHT, Findings, Row, failures, judge, longest_gap
from tools.zones.readers import Received
from tools.zones.replication import Replication
from tools.zones.traffic import Fetched, Traffic, traffic

CAPTURES = Path(__file__).parents[2] / "captures"
P, Q = 0, 1
"""A partition that broker 1 leads, and one that the broker in the rack leads."""
WRITTEN = {(partition, offset): f"{10 * partition + offset}" for partition in (P, Q) for offset in range(4)}
ROW = Row(release="4.3.0", fault="killed", mode="control", client="java", from_zone=1 / 3, busiest=20)


def received(*places: tuple[int, int], step: float = 1.0) -> list[Received]:
    return [
        Received(partition, offset, f"{10 * partition + offset}", 100.0 + step * at)
        for at, (partition, offset) in enumerate(places)
    ]


ALL = [(partition, offset) for offset in range(4) for partition in (P, Q)]


def test_a_third_of_the_partitions_is_led_in_the_rack() -> None:
    assert [replicas(each)[0] for each in range(PARTITIONS)] == [1, HERE, ELSEWHERE, 1, HERE, ELSEWHERE]
    assert [led_elsewhere(each) for each in range(3)] == [True, False, True]
    assert (led_elsewhere(P), led_elsewhere(Q)) == (True, False)


def test_nothing_is_wrong_with_each_record_once_and_in_order() -> None:
    found = judge(received(*ALL), WRITTEN, 0.0, 200.0)
    assert found == Findings(gap_elsewhere=2.0, gap_here=2.0)


def test_a_record_that_is_skipped_is_lost_and_records_at_the_end_are_missing() -> None:
    found = judge(received(*[place for place in ALL if place not in {(P, 1), (Q, 3)}]), WRITTEN, 0.0, 110.0)
    assert (found.lost, found.missing) == (1, 1)
    assert (found.gap_elsewhere, found.gap_here) == (3.0, 110.0 - 104.0)


def test_a_client_that_got_nothing_starves() -> None:
    assert judge([], WRITTEN, 0.0, 110.0).missing == len(WRITTEN)


@pytest.mark.parametrize(
    ("order", "doubled", "disordered"),
    [([0, 1, 2, 3], 0, 0), ([0, 1, 0, 1, 2, 3], 2, 0), ([0, 2, 1, 3], 0, 1), ([0, 2, 1, 2, 3], 1, 1)],
)
def test_a_record_that_comes_again_is_no_disorder(order: list[int], doubled: int, disordered: int) -> None:
    places = [(P, offset) for offset in order] + [(Q, offset) for offset in range(4)]
    found = judge(received(*places), WRITTEN, 0.0, 200.0)
    assert (found.doubled, found.disordered, found.lost) == (doubled, disordered, 0)


def test_another_record_at_an_offset_is_seen() -> None:
    records = received(*ALL)
    records[3] = replace(records[3], value="7")
    assert judge(records, WRITTEN, 0.0, 200.0).changed == 1


def test_a_gap_counts_that_ends_after_the_fault_began() -> None:
    assert longest_gap([1.0, 9.0, 10.0, 12.0], 0.0) == 8.0
    assert longest_gap([1.0, 9.0, 10.0, 12.0], 9.5) == 2.0
    assert longest_gap([1.0], 0.0) == 0.0


def test_the_share_of_the_zone_is_of_record_bytes_in_a_time() -> None:
    fetches = (Fetched(1, 1, 50, 0), Fetched(2, 1, 30, 0), Fetched(3, 2, 10, 1), Fetched(9, 2, 99, 2))
    found = Traffic(fetches=fetches)
    assert found.share(2, 2, 9) == 0.25
    assert found.share(2, 4, 9) is None
    assert found.out_of_range == 3


def test_the_busiest_second_is_that_with_the_most_fetches_without_records() -> None:
    fetches = [Fetched(1.1, 1, 5, 0)] * 9 + [Fetched(2.1, 1, 0, 0)] * 4 + [Fetched(2.9, 3, 0, 0)]
    assert Traffic(fetches=tuple(fetches)).busiest == 5
    assert Traffic().busiest == 0


def test_fetches_in_vain_are_those_to_one_broker() -> None:
    fetches = [Fetched(2.1, 1, 0, 0)] * 4 + [Fetched(2.3, 2, 0, 0)] * 3 + [Fetched(2.4, 2, 5, 0)]
    assert Traffic(fetches=tuple(fetches)).in_vain(2) == 3


def test_the_fetches_of_a_capture_are_read_with_their_broker(tmp_path: Path) -> None:
    """The consumer of this capture reads all partitions from broker 2 that have a replica there."""
    told = json.loads((CAPTURES / "librdkafka-zones-rack.manifest.json").read_text())
    nodes: dict[int, int | None] = dict(zip(told["ports"]["client_side"], (1, 2, 3), strict=True))
    (tmp_path / "one.pcap").write_bytes((CAPTURES / "librdkafka-zones-rack.pcap").read_bytes())
    found = traffic(tmp_path, nodes)
    share = found["reader"].share(HERE, 0, float("inf"))
    assert share is not None
    assert 0.7 < share < 0.8
    assert found["reader"].out_of_range == 0
    assert found["reader"].busiest > 0


def test_what_one_follower_fetches_is_held_back_until_it_is_let_go() -> None:
    with socket.create_server(("127.0.0.1", free_ports())) as target, Replication(3) as replication:
        target.settimeout(20)
        replication.relay(1, target.getsockname()[1])
        ends = {}
        for node_id in (2, 3):
            near = socket.create_connection(replication.address(1), timeout=20)
            near.sendall(b"broker-%d-fetcher-0" % node_id)
            ends[node_id] = near, target.accept()[0]
            ends[node_id][1].settimeout(20)
            assert ends[node_id][1].recv(100) == b"broker-%d-fetcher-0" % node_id
        replication.hold(2)
        for near, _ in ends.values():
            near.sendall(b"fetch")
        assert ends[3][1].recv(100) == b"fetch"
        ends[2][1].setblocking(False)
        with pytest.raises(BlockingIOError):
            ends[2][1].recv(100)
        ends[2][1].settimeout(20)
        replication.hold(0)
        assert ends[2][1].recv(100) == b"fetch"
        for pair in ends.values():
            for each in pair:
                each.close()


@pytest.mark.parametrize(
    ("findings", "told"),
    [
        (Findings(lost=2), "lost 2"),
        (Findings(doubled=3), "twice 3"),
        (Findings(disordered=1), "out of order 1"),
        (Findings(changed=1), "changed 1"),
        (Findings(missing_here=4), "starved, missing 4"),
    ],
)
def test_what_the_control_does_not_have_fails(findings: Findings, told: str) -> None:
    worse = replace(ROW, mode="named", findings=findings)
    assert failures([ROW, worse], "control") == [f"4.3.0, killed, named: java: {told}"]
    assert failures([replace(ROW, findings=findings), worse], "control") == []
    assert failures([replace(ROW, findings=findings), replace(ROW, mode="named")], "control") == []
    assert failures([worse], "control") == [f"4.3.0, killed, named: java: {told}"]


def test_a_tight_loop_and_an_offset_out_of_range_fail() -> None:
    worse = replace(ROW, mode="named", busiest=TIGHT, in_vain=TIGHT, out_of_range=1)
    assert failures([ROW, worse], "control") == [
        f"4.3.0, killed, named: java: out of range 1, fetches a second {TIGHT}"
    ]


def test_a_new_leader_may_answer_at_once() -> None:
    assert failures([ROW, replace(ROW, mode="named", busiest=TIGHT)], "control") == []


def test_a_member_of_a_group_may_get_records_again() -> None:
    worse = replace(ROW, mode="named", findings=Findings(doubled=3), in_group=True)
    assert failures([ROW, worse], "control") == []
