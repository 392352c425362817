"""``--check --gateways N``: tests whether brokers have enough session slots for N gateways like this one.

Each broker has slots for all its clients (``max.incremental.fetch.session.cache.slots``). A connection of a
client uses at most one slot, at the broker that it leads to. So the sessions of a gateway are spread over the
brokers as its clients' connections are.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from proxy.addresses import Address
from proxy.net.exchange import exchange
from proxy.net.resolve import Resolver
from proxy.net.tls import BrokerTls
from proxy.protocol.api import RESPONSE_START_BYTES, ApiKey, ErrorCode
from proxy.protocol.messages import read, request
from proxy.protocol.primitives import ProtocolError
from proxy.protocol.schemas import DESCRIBE_CONFIGS, DESCRIBE_CONFIGS_REQUEST
from proxy.text.error_text import reason_of

DEFAULT_SLOTS: Final = 1000
"""Kafka's default for the setting."""
SHARDS: Final = 8
"""Brokers from Kafka 3.8 on divide their slots into so many shards of equal size (fetch-semantics 2.7)."""
ASK_SECONDS: Final = 10.0
_SETTING: Final = "max.incremental.fetch.session.cache.slots"
_VERSION: Final = 1
"""All brokers with sessions, Kafka 1.1 to 4.3, support this version of DescribeConfigs."""
_MOST: Final = 0x7FFF_FFFF
_SHOWN: Final = 20
_BROKER: Final = 4
"""The type of the resource."""
_PART, _WHOLE = 4, 5
"""The part of a broker's slots that gateways may use: four fifths. The rest is for followers, and for clients
with sessions of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The session slots that a number of gateways may use, and those that there are."""

    gateways: int
    max_sessions: int
    max_connections: int
    brokers: int
    slots: int
    """The slots of the broker with the fewest."""

    @property
    def total(self) -> int:
        """The most sessions of all gateways together. A connection has one at most."""
        return self.gateways * min(self.max_sessions, self.max_connections)

    @property
    def each(self) -> int:
        """The sessions at each broker if clients' connections are spread evenly."""
        return -(-self.total // self.brokers)

    @property
    def usable(self) -> int:
        return usable(self.slots)

    @property
    def enough(self) -> bool:
        return self.each <= self.usable

    @property
    def most_sessions(self) -> int:
        """The largest value of ``--max-sessions`` for which there are enough slots."""
        return self.usable * self.brokers // self.gateways


def usable(slots: int) -> int:
    """Return how many of a broker's slots the gateways may use together."""
    return slots // SHARDS * SHARDS * _PART // _WHOLE


def slots_for(sessions: int) -> int:
    """Return the slots that a broker needs for this number of sessions of gateways."""
    return -(-sessions * _WHOLE // (_PART * SHARDS)) * SHARDS


def judged(demand: Demand) -> str:
    """Return a sentence that compares the slots with the demand, and says what to do if there are too few."""
    limit = f"--max-sessions {demand.max_sessions}"
    if demand.max_connections < demand.max_sessions:
        limit = f"--max-connections {demand.max_connections} (a connection has one session at most)"
    spread = f", {demand.each:,} at each of {demand.brokers} brokers if clients are spread evenly"
    gateways = "1 gateway" if demand.gateways == 1 else f"{demand.gateways:,} gateways"
    use = "uses" if demand.gateways == 1 else "use"
    slots = "session slot" if demand.total == 1 else "session slots"
    text = (
        f"{gateways} with {limit} {use} at most {demand.total:,} {slots}"
        f"{spread if demand.brokers > 1 else ''}. Of the {demand.slots:,} slots of a broker, gateways "
        f"should use at most {demand.usable:,}"
    )
    if demand.enough:
        return f"{text}: enough."
    sessions = demand.most_sessions
    if sessions >= demand.brokers:
        needed = slots_for(demand.each)
        return f"{text}: give the gateways --max-sessions {sessions}, or the brokers {_SETTING}={needed}"
    # Each client needs a session at each broker.
    needed = slots_for(demand.gateways)
    return f"{text}: give the brokers {_SETTING}={needed}, and the gateways --max-sessions {demand.brokers}"


async def ask_slots(
    brokers: Mapping[int, Address], resolver: Resolver, tls: BrokerTls, say: Callable[[str], None]
) -> int:
    """Ask each broker for its number of slots. Return the smallest. `brokers` is not empty.

    If a broker does not tell it, Kafka's default is assumed for this broker, and `say` prints why.
    """
    asked = [_slots_of(node_id, address, resolver, tls) for node_id, address in brokers.items()]
    answers = await asyncio.gather(*asked)
    reasons: dict[str, list[int]] = {}
    for node_id, answer in zip(brokers, answers, strict=True):
        if isinstance(answer, str):
            reasons.setdefault(answer, []).append(node_id)
    for reason, node_ids in reasons.items():
        which = f"broker {node_ids[0]}" if len(node_ids) == 1 else f"{len(node_ids)} brokers"
        say(f"{which}: the number of session slots is not known, {DEFAULT_SLOTS:,} are assumed: {reason}")
    return min(DEFAULT_SLOTS if isinstance(answer, str) else answer for answer in answers)


async def _slots_of(node_id: int, address: Address, resolver: Resolver, tls: BrokerTls) -> int | str:
    try:
        secured = tls.connect_args(address.host)
        frame = await exchange(address, _request(node_id), resolver, secured, within=ASK_SECONDS)
        found = read(DESCRIBE_CONFIGS, ApiKey.DESCRIBE_CONFIGS, _VERSION, frame, RESPONSE_START_BYTES)
    except asyncio.IncompleteReadError:
        return "the connection was closed without a response"
    except ProtocolError as error:
        return f"the response to DescribeConfigs is not understood: {error}"
    except (OSError, ValueError) as error:
        return reason_of(error)
    return _read_slots(found["results"] or [])


def _request(node_id: int) -> bytes:
    # A broker describes only itself.
    resource = {
        "resource_type": _BROKER,
        "resource_name": str(node_id).encode(),
        "configuration_keys": [{"name": _SETTING.encode()}],
    }
    return request(
        DESCRIBE_CONFIGS_REQUEST,
        ApiKey.DESCRIBE_CONFIGS,
        _VERSION,
        1,
        b"fetchgate",
        resources=[resource],
        include_synonyms=False,
    )


def _read_slots(results: list[Any]) -> int | str:
    for result in results:
        code = result["error_code"]
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return "DescribeConfigs of the cluster is not allowed here"
        if code:
            return f"error {code} in response to DescribeConfigs"
        for entry in result["configs"] or []:
            if entry["name"] == _SETTING.encode():
                return _number(entry["value"])
    return "the broker has no such setting"


def _number(value: bytes | None) -> int | str:
    if value is None:
        return "the broker does not tell the setting's value"
    # Python refuses to read numbers of thousands of digits; an int32 has ten.
    if value.isdigit() and len(value) <= len(str(_MOST)) and int(value) <= _MOST:
        return int(value)
    return f"'{value[:_SHOWN].decode('ascii', 'backslashreplace')}' is not a number of slots"
