"""The TLS benchmark compares the gateway with haproxy, for which it writes a TLS configuration."""

from pathlib import Path

from tools.bench import tls
from tools.bench.bulk import Drained
from tools.bench.processes import haproxy_command


def test_the_gateway_is_held_against_haproxy() -> None:
    table = tls._table(
        {"floor": [Drained(1.0, 1)], "gateway": [Drained(1.2, 2)], "haproxy": [Drained(0.9, 3)]}, 2
    )

    assert [(row.name, row.limit, row.met) for row in table.rows] == [
        ("CPU of the proxy", None, None),
        ("CPU in haproxy's", 1.3, False),
        ("throughput", None, None),
    ]


def test_haproxy_gets_tls_toward_the_broker_alone(tmp_path: Path) -> None:
    command = haproxy_command("haproxy", tmp_path, 1, 2, " ssl verify required")

    lines = Path(command[2]).read_text().splitlines()
    assert lines[-2:] == ["  bind 127.0.0.1:1", "  server broker 127.0.0.1:2 ssl verify required"]
