"""The benchmark of a misbehaving client and a bystander prints correct figures and sends correct requests."""

from tools.bench.bystander import figures, heartbeat
from tools.bench.figures import GATEWAY
from tools.bench.flood import READ_BYTES, queued, remembered, unknown_versions
from tools.bench.others import NUISANCES, PILE_UP, BystanderWindow, _table


def test_figures_of_a_window() -> None:
    seen = figures([number / 1000 for number in range(200, 0, -1)])
    assert {name: round(value) for name, value in seen.items()} == {
        "p50": 101,
        "p99": 199,
        "most": 200,
        "count": 200,
    }


def test_what_is_added_is_that_of_the_same_round() -> None:
    alone = [BystanderWindow(p50=1.0, p99=each, resident=50.0) for each in (2.0, 9.0, 4.0)]
    beside = [BystanderWindow(p50=1.5, p99=each, resident=80.0) for each in (3.0, 12.0, 5.0)]
    nuisance = NUISANCES[1]
    rows = {row.name: row for row in _table(nuisance, alone, beside, 19.0).rows}
    assert rows["added to p99"].values == {GATEWAY: 1.0}
    assert rows["added to p99"].met
    assert rows["more for each of its clients"].values == {GATEWAY: 30.0 / nuisance.clients}
    assert rows["its clients are let go after"].values == {GATEWAY: 19.0}


def test_what_clients_of_its_name_add_is_against_one_of_another_name() -> None:
    alone = [BystanderWindow(p50=1.0, p99=2.0, resident=50.0)] * 3
    beside = [
        BystanderWindow(p50=1.5, p99=p99, resident=50.0, apart=apart)
        for p99, apart in ((30, 28), (40, 36), (9, 8))
    ]
    rows = {row.name: row for row in _table(PILE_UP, alone, beside, 1.0).rows}
    assert rows["one of another name, p99"].values == {GATEWAY: 28}
    assert rows["added to p99"].values == {GATEWAY: 2}
    assert rows["added to p99"].met


def test_what_is_queued_is_one_read_of_whole_requests() -> None:
    data, frames = queued(bytes(16)), 0
    assert READ_BYTES - 14 < len(data) <= READ_BYTES
    while data:
        data, frames = data[4 + int.from_bytes(data[:4]) :], frames + 1
    assert frames > 18_000


def test_all_else_is_whole_as_well() -> None:
    for data in (unknown_versions(), heartbeat(1), remembered()):
        at = 0
        while at < len(data):
            at += 4 + int.from_bytes(data[at : at + 4])
        assert at == len(data)
