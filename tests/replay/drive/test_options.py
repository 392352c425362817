"""Values of options: their meaning, and the messages for invalid ones."""

import pytest

from proxy.addresses import Address
from proxy.protocol.api import ApiKey
from proxy.text.options import ConfigError
from replay.cli import read
from replay.drive.differences import Difference
from replay.drive.options import DriveOptions, OffsetPolicy


def value(name: str, text: str) -> object:
    """Return the value of an option that is given on the command line."""
    (flag,) = (option.flag for option in DriveOptions.declared() if option.name == name)
    needed = ("--compare", "--target=k:1") if name == "allow" else ("--dry-run",)
    return getattr(read("drive", ["x.pcap", f"{flag}={text}", *needed], {}), name)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("target", "[::1]:9092", Address("::1", 9092)),
        ("rate", "0.5", 0.5),
        ("speed", "max", None),
        ("speed", "10", 10.0),
        ("max_wait", "0", 0),
        ("max_wait", "1.5s", 1500),
        ("min_bytes", "64k", 65_536),
        ("duration", "90", 90.0),
        ("duration", "500ms", 0.5),
        ("start", "1m", 60.0),
        ("admin", ":9464", Address("127.0.0.1", 9464)),
        ("admin", "10.0.0.7:9464", Address("10.0.0.7", 9464)),
        ("loop", "2147483647", 2_147_483_647),
        ("port", "65535", (65_535,)),
        ("offsets", "clamp", OffsetPolicy.CLAMP),
        ("read_to", "end", "end"),
        ("include", "produce, OFFSETCOMMIT,", {ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT}),
        ("include", "", set()),
        ("allow", "missing, fewer versions", {Difference.MISSING, Difference.NARROWER}),
    ],
)
def test_a_value_is_read(name: str, text: str, expected: object) -> None:
    assert value(name, text) == expected


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("target", "kafka", "'kafka' has no port; write HOST:PORT"),
        ("rate", "inf", "'inf' must be above 0"),
        ("speed", "fast", "'fast' is not a number; max is as fast as responses come"),
        ("speed", "nan", "'nan' must be above 0"),
        ("max_wait", "inf", "'inf' is not a time; give milliseconds"),
        ("max_wait", "600h", "'600h' is too large for a fetch; the largest value is 2147483647"),
        ("min_bytes", "2g", "'2g' is too large for a fetch; the largest value is 2147483647"),
        ("min_bytes", "\u0663", "'\u0663' is not a size"),
        ("duration", "soon", "'soon' is not a time; give seconds"),
        ("duration", "0ms", "'0ms' must be above 0"),
        ("admin", "kafka", "'kafka' has no port; write HOST:PORT"),
        ("connections", "2147483648", "'2147483648' must be an integer from 1 to 2147483647"),
        ("loop", "9" * 5000, "9' must be an integer from 1 to 2147483647"),
        ("port", "0", "'0' must be an integer from 1 to 65535"),
        ("offsets", "", "'' is not one of keep, clamp, earliest, latest"),
        ("security_protocol", "TLS", "'TLS' is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("include", "Produce,Fetsch", "'Fetsch' is not an API of Kafka; did you mean Fetch?"),
        ("allow", "other", "'other' is not one of another error, another first offset"),
        ("topic_id", "=orders", "'=orders' is not ID=NAME, as in BsAPo2xmQ2aMgzxXyzGHmA=orders"),
        ("topic_id", "AAAA=orders", "'AAAA=orders' is not ID=NAME"),
        ("topic_id", "BsAPo2xmQ2aMgzxXyzGHmA", "'BsAPo2xmQ2aMgzxXyzGHmA' is not ID=NAME"),
        ("topic_id", "BsAPo2xmQ2aMgzxXyzGHmA=", "'BsAPo2xmQ2aMgzxXyzGHmA=' is not ID=NAME"),
        ("topic_id", f"{32 * 'x'}=orders", "is not ID=NAME"),
    ],
)
def test_what_means_nothing_is_named(name: str, text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        value(name, text)
    assert error in str(raised.value)


@pytest.mark.parametrize("id_", ["BsAPo2xmQ2aMgzxXyzGHmA", "06c00fa36c6643668c833c57cb318798"])
def test_a_topic_id_is_written_as_kafka_writes_it_or_in_hex(id_: str) -> None:
    expected = bytes.fromhex("06c00fa36c6643668c833c57cb318798")

    assert value("topic_id", f"{id_}=orders=x") == ((expected, "orders=x"),)
