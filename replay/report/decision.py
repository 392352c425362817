"""Advice from a report: the saving of a day, its certainty, and the next step for each client. Pure.

The figures for a day and for a month are modelled: the counted figures are divided by the captured seconds,
and multiplied by the seconds of a day or month.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, TypeAlias

from replay.report.floors import fetches_left
from replay.report.model import (
    Action,
    ClientRow,
    Decision,
    DifferentHosts,
    FetchMinBytes,
    FetchReport,
    Money,
    Net,
    OfClient,
    Passed,
    Report,
    ToDo,
    actual_bytes,
    predicted_bytes,
)
from replay.report.net import net_lines
from replay.report.settings import settings
from replay.report.wording import (
    HOUR,
    LEAST,
    SHORT,
    counted_twice,
    decided,
    estimated_amount,
    estimated_size,
    hosts_apart,
    how_sure,
    listed,
    meaning,
    number,
    on_loopback,
    percent,
    quoted,
    saving_known,
    shown,
)

DAY: Final = 86_400
MONTH: Final = 30 * DAY
_GB: Final = 10**9
_PAYS: Final = 0.01
"""A gateway pays for a client if it saves at least this part of the client's fetch bytes."""
_MIN_BYTES_PAYS: Final = 0.1
"""`fetch.min.bytes` is advised if it saves at least this part of a client's fetch bytes. The part is larger
than `_PAYS`, because waiting delays records."""
_WAITING: Final = 2.0
"""Fetches a second on a connection if each waits for fetch.max.wait.ms (500 by default)."""
_MIN_BYTES: Final = 65_536
"""The least `fetch.min.bytes` that is advised, see docs/users/decide.md."""
_GATEWAY_DELAY: Final = "less than 1 ms"
"""How much later records come through a gateway: the medians of `tools.bench --only latency`."""
_RECORDS: Final = 0.9
"""If records are at least this part of the fetch bytes, there is little else to save."""
_OLDEST: Final = 4
"""The first Fetch version that the gateway puts through sessions."""
_Advice: TypeAlias = tuple[Action, str]
ClientKey: TypeAlias = tuple[str, str, int]
"""The client id, the software and the Fetch version of a `ClientRow`."""
_SAVING: Final = frozenset({"gateway", "sidecar cost", "fetch.min.bytes"})
"""The actions whose sentence has a saving."""
_ONE_SIDE: Final = (
    "Measure one side of the gateway, see the first lines: fetches count twice, so no sum is known."
)
_MEASURE_ALONE: Final = (
    "Measure each capture alone: if they are of different hosts, money may decide otherwise for each."
)
_BEFORE_WAITING: Final = {
    "native session": "It has sessions of its own. ",
    "one partition": "It lists a single partition. ",
}
_MAY_WAIT: Final = frozenset({"", *_BEFORE_WAITING, "resting", "delta not smaller"})
"""Only if the main reason is one of these, the advice may be to fetch more records in fewer fetches."""
_BY_REASON: Final[dict[str, _Advice]] = {
    "leader epochs": (
        "upgrade brokers",
        "Upgrade the brokers to Kafka 2.5 or later: older sessions forget leader epochs (KAFKA-9338).",
    ),
    "broker without sessions": (
        "upgrade brokers",
        "Upgrade the brokers to Kafka 1.1 or later: older brokers have no fetch sessions.",
    ),
    "errors that a session forgets": (
        "upgrade brokers",
        "Upgrade the brokers to Kafka 4.0 or later: sessions of older brokers forget errors 35 and 76.",
    ),
    "native session": ("own sessions", "It has sessions of its own: it needs no gateway."),
    "one partition": ("one partition", "It lists a single partition: a session has nothing to leave out."),
    "not a consumer": (
        "leave",
        "Leave it as it is: it is a broker. If its fetches were slower, producers with acks=all would wait.",
    ),
    "unpaired": ("capture again", "Capture it again, with both directions: responses are missing."),
    "bytes missing": (
        "capture again",
        "Capture it again with whole packets: parts of its fetches are missing.",
    ),
    "broker not known yet": (
        "capture again",
        "Capture it again from before it connects: the capture has no ApiVersions response of the broker.",
    ),
    "no session yet": (
        "capture again",
        "Capture it for at least an hour: it had too few fetches to see whether a session saves bytes.",
    ),
    "catching up": ("capture again", "Capture it again when it has caught up: its responses were large."),
}

_OF_METADATA: Final[_Advice] = (
    "leave",
    "Leave it as it is: it is a broker or a controller, and fetches metadata from the active controller.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyRate:
    """Converts counted bytes to the bytes of a day and to money. The price is None if it is not known."""

    seconds: float
    price_per_gb: float | None = None
    currency: str = ""

    def day(self, count: int) -> int | None:
        """Return the bytes of a whole day at the captured rate, or None if too little time was captured."""
        return round(count / self.seconds * DAY) if self.seconds >= LEAST else None

    def month(self, count: int) -> float | None:
        """Return the money for 30 days at the captured rate. None without a price or enough captured time."""
        if self.price_per_gb is None or self.seconds < LEAST:
            return None
        return count / _GB * self.price_per_gb / self.seconds * MONTH


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSidecars:
    """The sidecars of one client: one at each address where sessions save bytes of this client.

    Args:
        pay: how many of them save more than they cost, for all clients at their address together. For a
            client that stays where others wait instead, the others do not pay.
        between_zones: whether zones are known, so that `pay` is of bytes between zones alone.
        waiting_wins: whether `fetch.min.bytes` would save more than these sidecars leave.
        others_wait: whether a sidecar would pay if other clients at its address did not wait instead.
    """

    number: int
    pay: int
    between_zones: bool = False
    waiting_wins: bool = False
    others_wait: bool = False


_ALL_PAY: Final = OwnSidecars(number=0, pay=0)


def decide(
    fetch: FetchReport,
    reason: str,
    clients: list[ClientRow],
    rate: DailyRate,
    *,
    policy: str = "gateway",
    next_step: str = "",
    sidecars: Mapping[ClientKey, OwnSidecars] | None = None,
    zoned: bool = False,
    twice: bool = False,
    different_hosts: DifferentHosts | None = None,
) -> Decision:
    """Return the contents of the report's first lines.

    `reason` is that of `why`, and `next_step` is for a capture without fetches. `sidecars` is None if their
    cost is not known. If zones are known (`zoned`), not each byte may cost money. If both sides of a gateway
    were captured (`twice`), fetches count twice.

    If the captures may be of different hosts, a client's money is left out: divided by the time of all
    captures, it would be too little. With a price there is no advice then, because money may decide otherwise
    for each capture alone.
    """
    known = saving_known(reason)
    own = rate if different_hosts is None else replace(rate, price_per_gb=None)
    advice = (_to_do(client, own, policy, sidecars or {}, zoned=zoned) for client in clients)
    if twice:
        advice = (_instead(found, "one side", _ONE_SIDE) for found in advice)
    elif different_hosts and rate.price_per_gb is not None:
        advice = (_instead(found, "measure alone", _MEASURE_ALONE) for found in advice)
    return Decision(
        captured_seconds=rate.seconds,
        enough=rate.seconds >= HOUR,
        saved_bytes_per_day=rate.day(fetch["saved_bytes"]) if known else None,
        saved_ratio=fetch["saved_ratio"],
        money_per_month=rate.month(fetch["saved_bytes"]) if known else None,
        different_hosts=different_hosts,
        reason=reason,
        next_step="" if fetch["actual"]["requests"] else next_step,
        to_do=sorted(advice, key=lambda row: -(row["advice_saves_bytes_per_day"] or 0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureApart:
    """A capture that may be of another host than the others, and what sessions save of its fetch bytes."""

    seconds: float
    fetch_bytes: int
    saved_bytes: int
    addresses: Collection[str]


def add_up_hosts(
    apart: Sequence[CaptureApart], rate: DailyRate, *, sidecars_priced: bool = False
) -> DifferentHosts | None:
    """Add up captures as those of different hosts. None if there is only one, or one is too short."""
    if len(apart) < 2 or any(one.seconds < LEAST for one in apart):
        return None
    rates = [(replace(rate, seconds=one.seconds), one) for one in apart]
    priced = rate.price_per_gb is not None
    shared = Counter(chain.from_iterable(one.addresses for one in apart))
    return DifferentHosts(
        captures=len(apart),
        captured_bytes_per_day=sum(own.day(one.fetch_bytes) or 0 for own, one in rates),
        saved_bytes_per_day=sum(own.day(one.saved_bytes) or 0 for own, one in rates),
        captured_per_month=sum(own.month(one.fetch_bytes) or 0 for own, one in rates) if priced else None,
        money_per_month=sum(own.month(one.saved_bytes) or 0 for own, one in rates) if priced else None,
        shared_addresses=sorted(address for address, captures in shared.items() if captures > 1),
        sidecars_priced=sidecars_priced,
    )


def why(fetch: FetchReport, passed: Mapping[str, Passed]) -> str:
    """Return why nothing is saved: a key of `passed`, or a sentence.

    Return "" if something is saved, or if there are no fetch bytes.
    """
    if fetch["saved_bytes"] > 0 or not actual_bytes(fetch):
        return ""
    reason = main_reason(passed)
    if reason and 2 * passed[reason]["bytes"] >= actual_bytes(fetch):
        return reason
    return "sessions cost what they saved" if fetch["eligible"]["exchanges"] else reason


def main_reason(passed: Mapping[str, Passed]) -> str:
    """Return the reason with the most passed bytes; "" if no fetch was passed."""
    return max(passed, key=lambda reason: (passed[reason]["bytes"], reason), default="")


def _to_do(
    client: ClientRow,
    rate: DailyRate,
    policy: str,
    sidecars: Mapping[ClientKey, OwnSidecars],
    *,
    zoned: bool,
) -> ToDo:
    fetch = client["fetch"]
    whole, saved = actual_bytes(fetch), fetch["saved_bytes"]
    own = sidecars.get(client_key(client), _ALL_PAY)
    alone = _saved_by_waiting(client, rate.seconds, whole)
    beside_sessions = _saved_by_waiting(client, rate.seconds, predicted_bytes(fetch))
    action: Action
    if saved > 0 and saved >= _PAYS * whole:
        worth = _MIN_BYTES_PAYS * whole
        waits = alone >= worth and (own.waiting_wins if own.number else alone - saved >= worth)
        by_gateway = f"saves {percent(fetch['saved_ratio'])}{_of_a_day(saved, rate, zoned=zoned)}"
        if waits:
            saved, action = alone, "fetch.min.bytes"
            words = f"{_wait(client, rate, alone, zoned=zoned)} {_if_not_later(own, policy, by_gateway)}"
        else:
            action = "gateway" if own.pay or not own.number else "sidecar cost"
            words = f"{_where_it_pays(own, policy)} {by_gateway}."
            if action == "gateway" and policy == "gateway" and rate.seconds < LEAST:
                words = f"Probably {_within(words)} {SHORT}"
            elif alone >= worth and not own.number:
                waiting = _settings(client, rate.seconds), percent(alone / whole)
                words = _in_either_way(words, *waiting, free_first=rate.month(saved) is None)
    elif whole and beside_sessions >= _MIN_BYTES_PAYS * whole and main_reason(client["passed"]) in _MAY_WAIT:
        saved, action = beside_sessions, "fetch.min.bytes"
        first = _BEFORE_WAITING.get(main_reason(client["passed"]), "")
        words = f"{first}{_wait(client, rate, beside_sessions, zoned=zoned)}"
    else:
        action, words = _advice(client)
        saved = 0
    return ToDo(
        **of_client(client_key(client)),
        action=action,
        saved_bytes_per_day=rate.day(fetch["saved_bytes"]),
        money_per_month=rate.month(fetch["saved_bytes"]),
        advice_saves_bytes_per_day=rate.day(saved),
        advice_saves_money_per_month=rate.month(saved),
        sentence=words,
    )


def client_key(client: OfClient) -> ClientKey:
    """Return what identifies a client in a report: its id, its software and its version of Fetch."""
    return client["client_id"], client["software"], client["fetch_version"]


def of_client(key: ClientKey) -> OfClient:
    """Return the fields of a row that identify the client with this key."""
    client_id, software, version = key
    return OfClient(client_id=client_id, software=software, fetch_version=version)


def _of_a_day(saved: int, rate: DailyRate, *, zoned: bool) -> str:
    day, month = rate.day(saved), rate.month(saved)
    words = f", {estimated_size(day, rate.seconds)} a day" if day is not None else ""
    if month is None:
        return words
    at = "if you pay for every byte" if zoned else "at your price"
    return f"{words}, {estimated_amount(month, rate.currency, rate.seconds)} a month {at}"


def _instead(found: ToDo, action: Action, words: str) -> ToDo:
    """Replace advice whose figures may be wrong because of how the input was captured."""
    if found["action"] not in _SAVING:
        return found
    return {
        **found,
        "action": action,
        "saved_bytes_per_day": None,
        "money_per_month": None,
        "advice_saves_bytes_per_day": None,
        "advice_saves_money_per_month": None,
        "sentence": words,
    }


def _where_it_pays(own: OwnSidecars, policy: str) -> str:
    # A gateway makes no session for each connection, so that figure is not what it would save.
    gateway = "a gateway" if policy == "gateway" else "a session for each connection"
    if own.number and not own.pay:
        why = (
            " once the other clients at its address raise fetch.min.bytes" if own.others_wait else ", see Net"
        )
        return f"Leave it as it is: its {_do_not_pay(own)}{why}. {gateway.capitalize()}"
    if own.pay < own.number:
        some = f"{number(own.pay)} of its {number(own.number)} addresses"
        why = " (where the bytes saved between zones pay for it)" if own.between_zones else ""
        return f"Put it behind a gateway at {some}{why}, see Net: at all of them {gateway}"
    if own.between_zones and own.number:
        paid = "its bytes saved between zones pay for it"
        return f"Put it behind a gateway: {paid}, see Net. {gateway.capitalize()}"
    return "Put it behind a gateway: that" if policy == "gateway" else gateway.capitalize()


def _do_not_pay(own: OwnSidecars) -> str:
    pay = "sidecar does not pay" if own.number == 1 else "sidecars do not pay"
    return f"{pay} {'for bytes known to be between zones' if own.between_zones else 'at your prices'}"


def _if_not_later(own: OwnSidecars, policy: str, by_gateway: str) -> str:
    if own.number and not own.pay:
        return f"If they must not, leave it as it is: its {_do_not_pay(own)}, see Net."
    cost = f", less the cost of its {'sidecar' if own.number == 1 else 'sidecars'}" if own.number else ""
    return f"If they must not, {_within(_where_it_pays(own, policy))} {by_gateway}{cost}."


def _within(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _wait(client: ClientRow, rate: DailyRate, saved: int, *, zoned: bool) -> str:
    now = client["fetch"]["actual"]["requests"] / _seconds(client, rate.seconds)
    return (
        f"Raise {_settings(client, rate.seconds)}: {_WAITING:.0f} "
        f"fetches a second on a connection instead of {now:,.{0 if now >= 10 else 1}f} would save "
        f"{percent(saved / actual_bytes(client['fetch']))} (modelled)"
        f"{_of_a_day(saved, rate, zoned=zoned)}. Records come up to {1 / _WAITING:g} s later."
    )


def _in_either_way(by_gateway: str, settings_: str, saves: str, *, free_first: bool) -> str:
    later = f"{1 / _WAITING:g} s later"
    # Without prices the free way comes first, as in the report's conclusion.
    if free_first:
        wait = f"If records may come up to {later}, raise {settings_}: that would save {saves} (modelled)"
        return f"{wait} and costs nothing. If not, {_within(by_gateway)}"
    wait = f"Or raise {settings_}: that would save {saves} (modelled), and records come up to {later}"
    return f"{by_gateway} {wait}."


def _settings(client: ClientRow, captured: float) -> str:
    # No fetch may be full earlier, also if twice as many records come as on average.
    most = 2 * client["fetch"]["actual"]["record_bytes"] / (_WAITING * _seconds(client, captured))
    min_bytes = max(_MIN_BYTES, 1 << (int(most) + 1).bit_length())
    return settings(client["software"], min_bytes, round(1000 / _WAITING))


def _seconds(client: ClientRow, captured: float) -> float:
    """Return how long a client's connections fetched. Other files, and gaps in the capture, do not count."""
    return min(client["connection_seconds"], client["connections"] * captured)


def saved_by_waiting_alone(clients: Iterable[ClientRow], seconds: float) -> dict[ClientKey, int]:
    """Model what ``fetch.min.bytes`` would save without sessions, by client. 0 where it is not advised."""
    found = {
        client_key(client): (_saved_alone(client, seconds), actual_bytes(client["fetch"]))
        for client in clients
    }
    return {key: saved if saved >= _MIN_BYTES_PAYS * whole else 0 for key, (saved, whole) in found.items()}


def _saved_alone(client: ClientRow, seconds: float) -> int:
    if client["fetch"]["saved_bytes"] > 0 or main_reason(client["passed"]) in _MAY_WAIT:
        return _saved_by_waiting(client, seconds, actual_bytes(client["fetch"]))
    return 0


def by_fetch_min_bytes(clients: Iterable[ClientRow], rate: DailyRate) -> FetchMinBytes:
    """Add up what ``fetch.min.bytes`` would save without sessions, in clients for which either may help."""
    saved = sum(_saved_alone(client, rate.seconds) for client in clients)
    return FetchMinBytes(saved_bytes=saved, saved_per_month=rate.month(saved))


def without_gateway(report: Report) -> str:
    """Say what ``fetch.min.bytes`` alone would save, to compare it with sessions; "" if this is little."""
    found, fetch = report["modelled"]["fetch_min_bytes"], report["fetch"]
    saved, whole = found["saved_bytes"], actual_bytes(fetch)
    if fetch["saved_bytes"] <= 0 or saved < _MIN_BYTES_PAYS * whole or report["both_sides"]:
        return ""
    month, money = found["saved_per_month"], report["modelled"]["money"]
    text = f"Without fetchgate: fetch.min.bytes in the clients would save {percent(saved / whole)}"
    # Money of captures of different hosts would be divided by the time of all of them.
    if month is not None and money is not None and not report["decision"]["different_hosts"]:
        zoned = money["saved_between_zones_per_month"] is not None
        seconds = report["decision"]["captured_seconds"]
        text += f", {estimated_amount(month, money['currency'], seconds)} a month"
        text += " if you pay for every byte" if zoned else ""
    return f"{text} (at most {_WAITING:.0f} fetches a second on a connection)."


def first_lines(report: Report) -> list[tuple[str, str]]:
    """Return the lines above all tables, each after its class in the style sheet: "unsure" is a warning."""
    lines = [
        *(("unsure", line) for line in counted_twice(report)),
        ("decided", decided(report)),
        ("net", conclusion(report)),
        ("soft", hosts_apart(report)),
        *(("net", line) for line in net_lines(report)),
        ("soft", without_gateway(report)),
        ("soft" if report["decision"]["enough"] else "unsure", how_sure(report)),
        ("soft", on_loopback(report)),
    ]
    return [(name, line) for name, line in lines if line]


def conclusion(report: Report) -> str:
    """Say which of two ways is advised for which clients, and what it costs.

    Return "" without two ways, and with money of captures that may be of different hosts (see `net_lines`).
    """
    apart = report["decision"]["different_hosts"] and report["modelled"]["money"]
    if apart or not without_gateway(report):
        return ""
    saving = {
        client_key(client): client for client in report["by_client"] if client["fetch"]["saved_bytes"] > 0
    }
    advised: dict[Action, list[ClientRow]] = {"gateway": [], "fetch.min.bytes": []}
    for row in report["decision"]["to_do"]:
        if row["action"] in advised and client_key(row) in saving:
            advised[row["action"]].append(saving[client_key(row)])
    if not any(advised.values()):
        return ""
    net = report["modelled"]["net"]
    return _by_money(net, advised) if net else _by_bytes(report, [*chain.from_iterable(advised.values())])


def _by_money(net: Net, advised: Mapping[Action, list[ClientRow]]) -> str:
    ways = {"a gateway": advised["gateway"], "fetch.min.bytes": advised["fetch.min.bytes"]}
    wins = ", and ".join(f"{way} wins for {_names(clients)}" for way, clients in ways.items() if clients)
    text = (
        f"Conclusion: by what is left after the cost of sidecars, {wins}. With fetch.min.bytes, records come "
        f"up to {1 / _WAITING:g} s later"
    )
    otherwise = "If they must not, or if you can't change a client"
    if not (net["between_zones"] or net)["paying"]["addresses"]:
        return f"{text}. {otherwise}, leave it as it is: no sidecar pays at your prices."
    text += f", with a gateway {_GATEWAY_DELAY}."
    if not advised["fetch.min.bytes"]:
        return text
    return f"{text} {otherwise}, choose a gateway where its sidecar pays (see What to do)."


def _by_bytes(report: Report, clients: Collection[ClientRow]) -> str:
    """Say what both ways save for the clients that the setting helps, and what a gateway saves for others."""
    waiting = saved_by_waiting_alone(clients, report["decision"]["captured_seconds"])
    helped = [client for client in clients if waiting[client_key(client)]]
    others = [client for client in clients if not waiting[client_key(client)]]
    text = "Conclusion"
    if helped:
        by_waiting = sum(waiting[client_key(client)] for client in helped) / _whole(helped)
        text += (
            f" for {_names(helped)}: raise fetch.min.bytes if you can, and if records may come up to "
            f"{1 / _WAITING:g} s later: it saves {percent(by_waiting)} and costs nothing. If not, use a "
            f"gateway: it saves {_by_gateway(helped)}."
        )
    if others:
        text += (
            f"{' For' if helped else ': for'} {_names(others)}, only a gateway saves: {_by_gateway(others)}."
        )
    text += f" With a gateway, records come {_GATEWAY_DELAY} later."
    if report["decision"]["different_hosts"] or not helped:
        return text
    return f"{text} To compare them by money, give {listed(_no_prices(report['modelled']['money']))}."


def _whole(clients: Iterable[ClientRow]) -> int:
    return sum(actual_bytes(client["fetch"]) for client in clients)


def _by_gateway(clients: Collection[ClientRow]) -> str:
    return percent(sum(client["fetch"]["saved_bytes"] for client in clients) / _whole(clients))


def _no_prices(money: Money | None) -> list[str]:
    price = [] if money else ["--price-per-gb"]
    currency = [] if money and money["currency"] else ["--currency"]
    return [*price, *currency, "--sidecar-cost"]


def _names(clients: Iterable[ClientRow]) -> str:
    """List the ids of clients. An id may be in several rows."""
    return listed(list(dict.fromkeys(quoted(client["client_id"]) for client in clients)))


def _saved_by_waiting(client: ClientRow, captured: float, whole: int) -> int:
    """Model what a client would save if its fetches waited longer: fewer fetches with the same records.

    0 if too little time was captured to know how often it fetches. `whole` are its fetch bytes, with or
    without sessions.
    """
    fetch = client["fetch"]
    requests = fetch["actual"]["requests"]
    seconds = _seconds(client, captured)
    fewer = requests - fetches_left(requests, seconds, wait=1 / _WAITING)
    if captured < LEAST or not seconds or fewer <= 0:
        return 0
    listing = whole - fetch["actual"]["record_bytes"]
    return max(round(listing * fewer / requests), 0)


def _advice(client: ClientRow) -> _Advice:
    fetch, reason = client["fetch"], main_reason(client["passed"])
    whole = actual_bytes(fetch)
    records = fetch["actual"]["record_bytes"]
    if reason == "not a consumer":
        return _OF_METADATA if client["client_id"].startswith("raft-client-") else _BY_REASON[reason]
    if records >= _RECORDS * whole and whole:
        return "leave", f"Leave it: {percent(records / whole)} of its fetch bytes are records."
    if reason.startswith("fetch v"):
        return _unsupported(client)
    if reason in _BY_REASON:
        return _BY_REASON[reason]
    if not reason or 2 * client["passed"][reason]["bytes"] < whole:
        return "leave", "Leave it: its partitions change with each fetch, so sessions cost what they save."
    explained = meaning(reason)
    return "leave", f"Leave it: {explained or reason}."


def _unsupported(client: ClientRow) -> _Advice:
    software, version = shown(client["software"], empty="the client"), client["fetch_version"]
    if version < _OLDEST:
        return (
            "upgrade client",
            f"Upgrade {software}: Fetch v{version} has no sessions; v{_OLDEST} and later have them.",
        )
    return "upgrade fetchgate", f"Upgrade fetchgate: it does not know Fetch v{number(version)}."
