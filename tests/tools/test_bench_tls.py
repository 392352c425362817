"""The benchmark of TLS: what it is held against, and haproxy's words."""

from pathlib import Path

from tools.bench import tls
from tools.bench.processes import haproxy_command


def test_where_haproxy_is_there_its_figure_counts() -> None:
    table = tls._table(
        {"floor": 1.0, "gateway": 1.3, "haproxy": 0.9}, {"floor": 1, "gateway": 2, "haproxy": 3}, 2
    )

    assert [(row.name, row.limit, row.met) for row in table.rows] == [
        ("CPU of the proxy", None, None),
        ("in haproxy's", 1.3, False),
        ("throughput", None, None),
    ]
    assert len(table.notes) == 1


def test_without_haproxy_the_floor_stands_in_and_the_table_says_so() -> None:
    table = tls._table({"floor": 1.0, "gateway": 1.3}, {"floor": 1, "gateway": 2}, 2)

    assert (table.rows[1].name, table.rows[1].values["gateway"], table.rows[1].met) == (
        "in the floor's",
        1.3,
        True,
    )
    assert "haproxy is not installed here" in table.notes[-1]


def test_haproxy_gets_tls_toward_the_broker_alone(tmp_path: Path) -> None:
    command = haproxy_command("haproxy", tmp_path, 1, 2, " ssl verify required")

    lines = Path(command[2]).read_text().splitlines()
    assert lines[-2:] == ["  bind 127.0.0.1:1", "  server broker 127.0.0.1:2 ssl verify required"]
