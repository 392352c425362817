"""The data source `kafka-pcap` reads captures as its options say. Spark is not needed for this."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from replay.capture.files.sources import InputError
from replay.source.kafka_pcap import KafkaPcap, KafkaPcapReader
from tests.replay.capture.crafting import RAW, pcap
from tests.replay.capture.encrypting import begun, encrypted, ends, frames
from tests.replay.capture.packets_of import packets
from tests.replay.source.test_columns import rows
from tests.replay.truths import CAPTURES

ROOT = Path(__file__).parents[3]


def reader(**options: str) -> KafkaPcapReader:
    source = KafkaPcap(options)
    found = source.reader(source.schema())
    assert isinstance(found, KafkaPcapReader)
    return found


def read(**options: str) -> list[dict[str, Any]]:
    """Read all parts of captures, as the tasks of Spark do."""
    found = reader(**options)
    return [row for part in found.partitions() for batch in found.read(part) for row in batch.to_pylist()]


def test_the_parts_of_all_tasks_are_the_table() -> None:
    path = CAPTURES / "many-clients-any.pcap"

    assert len(reader(path=str(path), partitions="3").partitions()) == 3
    assert sorted(map(repr, read(path=str(path), partitions="3"))) == sorted(map(repr, rows(path)))
    assert read(path=str(path), ports="1, 2") == []


def test_tls_is_read_with_a_key_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both, plain = ends(tmp_path), begun(packets("java-100p"))
    with both.keylog.open("a") as file:
        file.write("nonsense\n")
    (tmp_path / "plain.pcap").write_bytes(pcap(frames(plain), RAW, nano=True))
    (tmp_path / "tls.pcap").write_bytes(pcap(frames(encrypted(plain, both)), RAW, nano=True))
    found = [read(path=str(tmp_path / name), keylog=str(both.keylog)) for name in ("tls.pcap", "plain.pcap")]
    for row in (row for each in found for row in each):
        del row["time"], row["seconds"]

    assert found[0]
    assert sorted(map(repr, found[0])) == sorted(map(repr, found[1]))
    assert capsys.readouterr().err.startswith(f"kafka-pcap: --keylog {both.keylog}: 1 ")


@pytest.mark.parametrize(
    ("path", "options", "told"),
    [
        ("none.pcap", {}, "none.pcap: no such file"),
        (str(ROOT / "README.md"), {}, "README.md: neither pcap nor pcapng"),
        (str(CAPTURES), {"ports": "9" * 5000}, "9 is not a number >= 1"),
        (str(CAPTURES), {"partitions": "0"}, "option partitions: 0 is not a number >= 1"),
        (str(CAPTURES), {"port": "9092"}, "kafka-pcap: no option port; there are keylog, partitions, ports"),
        (str(CAPTURES), {"keylog": __file__}, "test_kafka_pcap.py: no secrets in it; a key log has"),
        (str(CAPTURES), {"keylog": "none.log"}, "keylog none.log: No such file"),
        (None, {}, "no path; name a capture"),
        (
            str(CAPTURES),
            {"prots": "9092"},
            "no option prots; there are keylog, partitions, ports; did you mean ports",
        ),
        (str(CAPTURES), {"header": "true"}, "no option header; there are keylog, partitions, ports"),
    ],
)
def test_what_is_wrong_is_told(path: str | None, options: Mapping[str, str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        reader(**options, **({} if path is None else {"path": path}))
