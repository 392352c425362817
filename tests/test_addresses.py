import pytest

from proxy.addresses import Address, BrokerPorts, FreePorts, PortRange, advertised

LISTEN = Address("127.0.0.1", 19092)
LONG = "9" * 5_000
"""More digits than Python reads as a number."""


@pytest.mark.parametrize(
    ("text", "address", "written"),
    [
        ("kafka:9092", Address("kafka", 9092), "kafka:9092"),
        (" 10.0.0.1:1 ", Address("10.0.0.1", 1), "10.0.0.1:1"),
        ("[::1]:65535", Address("::1", 65535), "[::1]:65535"),
        (f"kafka:{'0' * 5_000}9092", Address("kafka", 9092), "kafka:9092"),
    ],
)
def test_an_address_is_read_and_written(text: str, address: Address, written: str) -> None:
    assert Address.parse(text) == address
    assert str(address) == written


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kafka", "'kafka' has no port; write HOST:PORT"),
        ("kafka:", "'kafka:' has no port; write HOST:PORT"),
        ("9092", "'9092' has no host; write HOST:PORT"),
        ("http://kafka:9092", "'http://kafka:9092' is a URL; write only HOST:PORT"),
        (":9092", "':9092' has no host; write HOST:PORT"),
        ("kafka:0", "'0' is not a port; ports are 1 to 65535"),
        ("kafka:65536", "'65536' is not a port; ports are 1 to 65535"),
        ("kafka:nine", "'nine' is not a port; ports are 1 to 65535"),
        ("kafka:²", "'²' is not a port; ports are 1 to 65535"),
        ("kafka:٣", "'٣' is not a port; ports are 1 to 65535"),
        (f"kafka:{LONG}", f"'{LONG}' is not a port; ports are 1 to 65535"),
        ("::1:9092", "'::1:9092' is ambiguous; write an IPv6 address as [::1]:9092"),
    ],
)
def test_an_address_that_is_none_says_why(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Address.parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("rule", "node_id", "place"),
    [
        ("", 0, Address("127.0.0.1", 19093)),
        ("", 7, Address("127.0.0.1", 19100)),
        ("", 46442, Address("127.0.0.1", 65535)),
        ("", 46443, None),
        ("", 2_147_483_647, None),
        ("", -1, None),
        ("29100", 0, Address("127.0.0.1", 29100)),
        ("29100", 3, Address("127.0.0.1", 29103)),
        ("3=29050", 3, Address("127.0.0.1", 29050)),
        ("3=29050", 4, Address("127.0.0.1", 19097)),
        ("29100, 3=29050", 3, Address("127.0.0.1", 29050)),
        ("29100,3=29050", 2, Address("127.0.0.1", 29102)),
        ("b-{id}.gate:9092", 12, Address("b-12.gate", 9092)),
        ("b-{id}.gate:9092,12=7", 12, Address("127.0.0.1", 7)),
    ],
)
def test_a_rule_places_brokers(rule: str, node_id: int, place: Address | None) -> None:
    assert BrokerPorts.parse(rule).place(node_id, LISTEN) == place


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("x", "'x' is not a port; ports are 1 to 65535"),
        ("a=1", "'a' is not a broker id; write ID=PORT, as in 3=29103"),
        ("-1=1", "'-1' is not a broker id; write ID=PORT, as in 3=29103"),
        ("٣=1", "'٣' is not a broker id; write ID=PORT, as in 3=29103"),
        ("2147483648=1", "'2147483648' is not a broker id; write ID=PORT, as in 3=29103"),
        (f"{LONG}=1", f"'{LONG}' is not a broker id; write ID=PORT, as in 3=29103"),
        ("3=70000", "'70000' is not a port; ports are 1 to 65535"),
        (f"3={LONG}", f"'{LONG}' is not a port; ports are 1 to 65535"),
        ("1,2", "'2' is a second base or template; only one is allowed"),
        ("1,b-{id}:2", "'b-{id}:2' is a second base or template; only one is allowed"),
        ("b-{id}", "'b-{id}' has no port; write HOST:PORT"),
        ("1=7,3=8,2=7,4=8", "brokers 1 and 2 are both at port 7; give each broker a port of its own"),
    ],
)
def test_a_rule_that_is_none_says_why(rule: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        BrokerPorts.parse(rule)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("listener", "listen", "advertise", "told"),
    [
        (Address("127.0.0.1", 5), LISTEN, "", Address("127.0.0.1", 5)),
        (Address("127.0.0.1", 5), LISTEN, "gate", Address("gate", 5)),
        (Address("0.0.0.0", 5), Address("0.0.0.0", 1), "", Address("10.1.1.1", 5)),
        (Address("::", 5), Address("::", 1), "", Address("10.1.1.1", 5)),
        (Address("0.0.0.0", 5), Address("0.0.0.0", 1), "gate", Address("gate", 5)),
        (Address("b-1.gate", 5), Address("0.0.0.0", 1), "gate", Address("b-1.gate", 5)),
    ],
)
def test_what_clients_are_told(listener: Address, listen: Address, advertise: str, told: Address) -> None:
    assert advertised(listener, listen=listen, advertise=advertise, reached_at="10.1.1.1") == told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("19093", "'19093' is not a range of ports; write FIRST-LAST, as in 19093-19192"),
        ("19093-", "'' is not a port; ports are 1 to 65535"),
        ("0-9", "'0' is not a port; ports are 1 to 65535"),
        ("9-65536", "'65536' is not a port; ports are 1 to 65535"),
        ("10-9", "'10-9' has its last port before its first"),
    ],
)
def test_a_range_that_is_none_says_why(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        PortRange.parse(text)
    assert str(caught.value) == message


def test_a_port_that_was_used_is_given_again_last() -> None:
    free = FreePorts(PortRange.parse(" 10 - 14 "), {12, 99})
    assert [free.take(), free.take(), free.take(14)] == [10, 11, 14]
    free.give_back(10)
    free.give_back(12)
    free.give_back(99)
    assert [free.take(14), free.take(), free.take()] == [13, 10, None]
