"""Values of options: their meaning, and the messages for invalid ones."""

import argparse
from collections.abc import Callable

import pytest

from proxy.addresses import Address
from proxy.protocol.api import ApiKey
from replay.drive import values
from replay.drive.compare import Difference
from replay.drive.mapping import OffsetPolicy


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (values.address, "[::1]:9092", Address("::1", 9092)),
        (values.positive, "0.5", 0.5),
        (values.speed, "max", None),
        (values.speed, "10", 10.0),
        (values.wait, "0", 0),
        (values.wait, "1.5s", 1500),
        (values.size, "64k", 65_536),
        (values.duration, "90", 90.0),
        (values.duration, "500ms", 0.5),
        (values.admin, ":9464", Address("127.0.0.1", 9464)),
        (values.admin, "10.0.0.7:9464", Address("10.0.0.7", 9464)),
        (values.count, "2147483647", 2_147_483_647),
        (values.port, "65535", 65_535),
        (values.offsets, "clamp", OffsetPolicy.CLAMP),
        (values.apis, "produce, OFFSETCOMMIT,", [ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT]),
        (values.apis, "", []),
        (values.differences, "missing, fewer versions", [Difference.MISSING, Difference.NARROWER]),
    ],
)
def test_a_value_is_read(read: Callable[[str], object], text: str, value: object) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "error"),
    [
        (values.address, "kafka", "'kafka' has no port; write HOST:PORT"),
        (values.positive, "inf", "'inf' must be above 0"),
        (values.speed, "fast", "'fast' is not a number"),
        (values.speed, "nan", "'nan' must be above 0"),
        (values.wait, "inf", "'inf' is not a time; give milliseconds"),
        (values.wait, "600h", "'600h' is too large for a fetch; the largest value is 2147483647"),
        (values.size, "2g", "'2g' is too large for a fetch; the largest value is 2147483647"),
        (values.size, "\u0663", "'\u0663' is not a size"),
        (values.duration, "soon", "'soon' is not a time; give seconds"),
        (values.duration, "0ms", "'0ms' must be above 0"),
        (values.admin, "kafka", "'kafka' has no port; write HOST:PORT"),
        (values.count, "2147483648", "'2147483648' must be an integer from 1 to 2147483647"),
        (values.count, "9" * 5000, "9' must be an integer from 1 to 2147483647"),
        (values.port, "0", "'0' must be an integer from 1 to 65535"),
        (values.offsets, "", "'' is not one of keep, clamp, earliest, latest"),
        (values.apis, "Produce,Fetch it", "'Fetch it' is not one of AddOffsetsToTxn, "),
        (
            values.differences,
            "other",
            "'other' is not one of another error, another first offset",
        ),
        (values.named_id, "=orders", "'=orders' is not ID=NAME, as in BsAPo2xmQ2aMgzxXyzGHmA=orders"),
        (values.named_id, "AAAA=orders", "'AAAA=orders' is not ID=NAME"),
        (values.named_id, "BsAPo2xmQ2aMgzxXyzGHmA", "'BsAPo2xmQ2aMgzxXyzGHmA' is not ID=NAME"),
        (values.named_id, "BsAPo2xmQ2aMgzxXyzGHmA=", "'BsAPo2xmQ2aMgzxXyzGHmA=' is not ID=NAME"),
        (values.named_id, f"{32 * 'x'}=orders", "is not ID=NAME"),
    ],
)
def test_what_means_nothing_is_named(read: Callable[[str], object], text: str, error: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as raised:
        read(text)
    assert error in str(raised.value)


@pytest.mark.parametrize("id_", ["BsAPo2xmQ2aMgzxXyzGHmA", "06c00fa36c6643668c833c57cb318798"])
def test_a_topic_id_is_written_as_kafka_writes_it_or_in_hex(id_: str) -> None:
    expected = bytes.fromhex("06c00fa36c6643668c833c57cb318798")

    assert values.named_id(f"{id_}=orders=x") == (expected, "orders=x")
