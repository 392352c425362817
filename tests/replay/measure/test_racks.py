import pytest

from replay.measure.racks import NO_RACKS, broker_rack, client_rack, endpoint, host_of, racks


def test_the_longest_prefix_names_a_client() -> None:
    named = racks([], [client_rack("10.0.1.5=b"), client_rack("10.0.0.0/8=a"), client_rack("fd00::/8=c")])

    assert [named.of_client(host) for host in ("10.9.9.9", "10.0.1.5", "fd00::1", "9.9.9.9")] == [
        "a",
        "b",
        "c",
        "",
    ]
    assert named.of_broker("10.0.1.5") == ""


def test_a_broker_is_named_by_its_id_or_its_network() -> None:
    named = racks([broker_rack("3=a"), broker_rack("10.0.1.0/24=b"), broker_rack("3=c=d")], [])

    assert (named.of_node(3), named.of_node(4)) == ("c=d", "")
    assert (named.of_broker("10.0.1.7"), named.of_broker("10.0.2.7")) == ("b", "")
    assert named
    assert not NO_RACKS


@pytest.mark.parametrize("text", ["", "1", "1=", "=a", "-1=a", "2147483648=a", "kafka=a", "\u0661=a"])
def test_what_names_no_broker_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not ID=NAME, such as 1=us-east-1a"):
        broker_rack(text)


@pytest.mark.parametrize("text", ["", "10.0.0.1", "10.0.0.1=", "=a", "10.0.0=a"])
def test_what_names_no_client_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not CIDR=NAME, such as 10.0.1.0/24=us-east-1a"):
        client_rack(text)


@pytest.mark.parametrize(
    ("host", "address"), [("10.0.0.1", "10.0.0.1:9"), ("::1", "[::1]:9"), ("kafka-1", "")]
)
def test_addresses_are_those_of_captures(host: str, address: str) -> None:
    assert endpoint(host, 9) == address
    assert not address or host_of(address) == host
