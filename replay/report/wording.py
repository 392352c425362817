"""The sentences of the report for terminals and HTML, and the formats of its figures and names."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, Literal

from proxy.session.decision import Reason
from proxy.text.printable import printable
from replay.capture.tls import reasons
from replay.report.model import CooperativeReport, DifferentHosts, Filters, Money, Problem, Report

POLICY: Final = {
    "gateway": "Policy gateway: what fetchgate would have done for these clients. It uses a session if this "
    "saves bytes, and sends full fetches otherwise.",
    "always": "Policy always: every connection has a session from its first eligible fetch to its end. This "
    "shows the most that sessions can save. The gateway uses no session if it does not save bytes.",
}
_KIP_227: Final = (
    "https://cwiki.apache.org/confluence/display/KAFKA/"
    "KIP-227%3A+Introduce+Incremental+FetchRequests+to+Increase+Partition+Scalability"
)
PRODUCT: Final = (
    "fetchgate is a small proxy beside a Kafka client that adds incremental fetch sessions",
    "KIP-227",
    _KIP_227,
    "so that fewer bytes go to and from the brokers; the records stay the same.",
)
"""What fetchgate is: the text before a link, the text of the link, its address, and the text after it."""
FORMULA: Final = (
    "Predicted broker side = bytes of the eligible fetches with the gateway's sessions "
    "(with closing and repairing sessions) + all other fetches as captured."
)
SAVED: Final = (
    "Saved = eligible fetches as captured - the same fetches with sessions, both directions. "
    "The percentage is of all captured fetch bytes."
)
COUNTED: Final = (
    "Bytes are counted on whole Kafka frames with their 4-byte length. 1 MB is 10^6 bytes. "
    "Modelled figures are in a separate section."
)
MODELLED: Final = "Modelled, not counted"
NOTHING_IN_STREAMS: Final = "nothing, because no TCP payload was captured or selected"
"""How much could be read of a capture whose streams are empty."""
ELIGIBLE: Final = (
    "Eligible fetches are full fetches of consumers, captured with their response, that a session can "
    "replace. Clients with sessions of their own stay as captured and save nothing more."
)
REST: Final = "(rest of each frame)"
"""The row name in by_topic for bytes that belong to no topic. It is not a valid topic name."""
ShareKey = Literal["record_bytes", "entry_bytes", "other_bytes", "listing_bytes", "empty_entry_bytes"]
SHARES: Final[dict[ShareKey, tuple[str, str]]] = {
    "record_bytes": ("Records", "the records in responses"),
    "entry_bytes": (
        "Other entries",
        "partitions in responses with something new, without their records",
    ),
    "other_bytes": ("Rest of the frames", "headers, session fields, topic names of responses"),
    "listing_bytes": ("Listed partitions", "in requests of consumers"),
    "empty_entry_bytes": ("Empty entries", "partitions in responses with nothing new"),
}
"""The name and the meaning of each key of `model.Shares`. Sessions reduce only the last two shares."""

REASONS: Final = {
    **{reason.value: reason.meaning for reason in Reason},
    "unpaired": "the request was captured without its response",
    "bytes missing": "part of the request or of the response was not captured",
    "sessions cost what they saved": "sessions saved no more bytes than they added",
}
_FAMILIES: Final = {
    "fetch v": "sessions don't support this version, or it is newer than this fetchgate",
    "error ": "the broker responded to the whole fetch with this Kafka error code",
}

_UNTOLD: Final = frozenset({"bytes missing", "unpaired"})
CUT: Final = "cut by the snap length"
"""The reason for unreadable bytes that the capture does not have, because packets were cut."""
_WARNINGS: Final = 5
"""How many warnings of one kind are in the text. The JSON report has all of them."""
MAX_NAME: Final = 120
"""The longest name in a report. Longer names are cut, because a client id can have 32 kB."""
NAME_HOSTS: Final = "name the clients' hosts with --host"
"""What to do with `measure` if both sides of a gateway use the same port."""
HOUR: Final = 3_600
"""If less than this was captured, in seconds, figures of a day, a month and a year have two digits."""
_FEW: Final = 5
"""With at most this many fetches on each connection, it is not known whether a session would save bytes."""
LEAST: Final = 5
"""If less than this was captured, in seconds, there are no figures of a day, a month or a year."""
SHORT: Final = "Capture for at least an hour first."
"""What to do before advice whose capture is too short."""
OF_BROKERS: Final = "all fetches are from brokers and controllers"
CAPTURE_CONSUMERS: Final = (
    "capture for at least an hour, while consumers are connected, on the port that they use."
)
"""What to do if no fetch is a consumer's."""
_UNITS: Final = ("kB", "MB", "GB", "TB", "PB")


def size(count: float, digits: int = 3) -> str:
    """Format bytes with three digits and a decimal unit: "0 B", "999 B", "1.23 kB", "-45.6 MB"."""
    if abs(count) < 1000:
        return f"{count} B"
    value: float = count
    for unit in _UNITS:
        value /= 1000
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            break
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{max(decimals + digits - 3, 0)}f} {unit}"


def estimated_size(count: int, seconds: float) -> str:
    """Format the bytes of a day that were computed from so many captured seconds: "13.4 GB", or "13 GB"."""
    return size(count) if seconds >= HOUR else size(round(_two_digits(count)), digits=2)


def estimated_price(money: float, seconds: float) -> str:
    """Format money of a month or a year that was computed from so many captured seconds: "8.03", or "8.0"."""
    rounded = _two_digits(money)
    if seconds >= HOUR or abs(rounded) < 1:
        return price(money)
    return f"{rounded:,.{1 if abs(rounded) < 10 else 0}f}"


def estimated_amount(money: float, currency: str, seconds: float) -> str:
    """Format money as `estimated_price` does, with its currency."""
    return f"{estimated_price(money, seconds)} {currency}".rstrip()


def _two_digits(figure: float) -> float:
    return float(f"{figure:.1e}")


def estimated_from(seconds: float) -> str:
    """Say from which captured time the figures of a sentence are computed."""
    return f"estimated from {duration(seconds)}"


def percent(ratio: float) -> str:
    """Format a ratio as a percentage with one decimal.

    Rounding never gives "0.0 %" or "100.0 %": only the ratios 0 and 1 themselves have these texts.
    """
    if ratio < 0:
        return f"-{percent(-ratio)}"
    if 0 < ratio < 0.0005:
        return "<0.1 %"
    if 0.9995 <= ratio < 1:
        return ">99.9 %"
    return f"{ratio * 100:.1f} %"


def number(count: int) -> str:
    """Format a count with thousands separators."""
    return f"{count:,}"


def plural(count: int, noun: str, several: str = "") -> str:
    """Format a count with its noun: "1 file", "2 files". `several` is the plural, if it is not with an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {several or noun + 's'}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Format names as a list: "a", "a and b", "a, b, c, d, e and 2 more"."""
    more = [f"{number(len(names) - most)} more"] if names[most:] else []
    *first, last = [*names[:most], *more]
    return f"{', '.join(first)} and {last}" if first else last


def shown(name: str, *, empty: str = "(none)") -> str:
    """Format a name or another text: printable, and cut after `MAX_NAME` characters. `empty` replaces ""."""
    text = printable(name[: MAX_NAME + 1])
    if len(text) > MAX_NAME:
        return text[:MAX_NAME] + "..."
    return text or empty


def first_of(names: Sequence[str], most: int) -> str:
    """Return at most so many names, and how many others there are."""
    more = f" and {number(len(names) - most)} more" if names[most:] else ""
    return f"{', '.join(map(shown, names[:most]))}{more}"


def quoted(name: str) -> str:
    """Format a name in a sentence. An empty name has no quotes."""
    return f'"{shown(name)}"' if name else shown(name)


def meaning(reason: str) -> str:
    """Explain a reason why fetches were not eligible; "" if it needs no explanation."""
    families = (words for begin, words in _FAMILIES.items() if reason.startswith(begin))
    return REASONS.get(reason) or next(families, "")


def price(amount: float) -> str:
    """Format an amount of money. Only 0 itself becomes "0.00"."""
    if 0 < abs(amount) < 0.01:
        return "<0.01" if amount > 0 else ">-0.01"
    return f"{amount:,.2f}"


def amount(count: float, currency: str) -> str:
    """Format an amount of money with its currency, if that is known."""
    return f"{price(count)} {currency}".rstrip()


def per_gb(price_per_gb: float, currency: str) -> str:
    """Format the price of 10^9 bytes, with all digits that were given."""
    digits = f"{Decimal(repr(price_per_gb)).normalize():,f}"
    return f"{digits} {currency}".rstrip() + " per GB"


def duration(seconds: float) -> str:
    """Format a span of time with its two largest units: "0.044 s", "9.9 s", "3 min 5 s", "2 d 4 h"."""
    if not seconds:
        return "0 s"
    if seconds < 0.1:
        return f"{seconds:.3f} s" if seconds >= 0.001 else "<0.001 s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = timedelta(seconds=round(seconds))
    minutes, rest = divmod(whole.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    units = ((whole.days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    first = next(place for place, (value, _) in enumerate(units) if value)
    return " ".join(f"{value} {unit}" for value, unit in units[first : first + 2] if value)


def moment(time: str) -> str:
    """Format an ISO time to the second, in UTC."""
    return datetime.fromisoformat(time).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def decided(report: Report) -> str:
    """Return the first line: how much sessions would save, or why nothing, or why it is not known."""
    if unknown := untold(report):
        return unknown
    decision = report["decision"]
    fetch = report["fetch"]
    whole = size(fetch["actual"]["request_bytes"] + fetch["actual"]["response_bytes"])
    saved, day, money = fetch["saved_bytes"], decision["saved_bytes_per_day"], decision["money_per_month"]
    if saved <= 0:
        reason = because(decision["reason"])
        if not saved:
            return f"Sessions would save nothing of {whole} fetch bytes: {reason}."
        more = percent(-fetch["saved_ratio"])
        return f"Sessions would add {size(-saved)} to {whole} fetch bytes, {more}: {reason}."
    if day is None:
        return f"Sessions would save {size(saved)} of {whole} fetch bytes, {percent(fetch['saved_ratio'])}."
    seconds, hosts = decision["captured_seconds"], decision["different_hosts"]
    begin = f"If the {number(hosts['captures'])} captures are of one host, sessions" if hosts else "Sessions"
    text = f"{begin} would save {_a_day(day, fetch['saved_ratio'], seconds)}"
    model = report["modelled"]["money"]
    if money is not None and model is not None:
        currency, crossing = model["currency"], model["saved_between_zones_per_month"]
        text += f": {_a_month(money, model['captured_per_month'], currency, seconds)}"
        text += f" at {per_gb(model['price_per_gb'], currency)}"
        if crossing is not None:
            between = estimated_amount(crossing, currency, seconds)
            text += f" for every byte, or {between} if you pay only between zones"
    text += f" ({estimated_from(seconds)})."
    return f"{text} {_of_different_hosts(hosts, model, seconds)}" if hosts else text


def _a_day(saved: int, ratio: float, seconds: float) -> str:
    return f"{estimated_size(saved, seconds)} a day, {percent(ratio)} of the fetch bytes"


def _a_month(saved: float, captured: float | None, currency: str, seconds: float) -> str:
    of = "" if captured is None else f" of {estimated_price(captured, seconds)}"
    return f"{estimated_price(saved, seconds)}{of} {currency}".rstrip() + " a month"


def _of_different_hosts(found: DifferentHosts, model: Money | None, seconds: float) -> str:
    day, month = found["saved_bytes_per_day"], found["money_per_month"]
    text = f"If they are of different hosts, {_a_day(day, day / found['captured_bytes_per_day'], seconds)}"
    if month is not None and model is not None:
        text += f": {_a_month(month, found['captured_per_month'], model['currency'], seconds)}"
    return f"{text}."


def hosts_apart(report: Report) -> str:
    """Say what to do if the captures are of different hosts, and what suggests this; "" if nothing does."""
    hosts = report["decision"]["different_hosts"]
    if hosts is None or untold(report):
        return ""
    shared = hosts["shared_addresses"]
    only = f"only the address {' or '.join(map(shown, shared))}" if shared else "no client address"
    return (
        "For different hosts, measure each capture alone: the other figures here are too low for that case. "
        f"The captures were taken at different times, and {only} is in two of them."
    )


def untold(report: Report) -> str:
    """Say why the saving is not known, and what to capture; "" if it is known."""
    reason = report["decision"]["reason"]
    if no_consumer(report):
        return f"No consumer is in this capture: {OF_BROKERS}; {CAPTURE_CONSUMERS}"
    requests = report["fetch"]["actual"]["requests"]
    connections = sum(row["connections"] for row in report["by_client"])
    if reason == "no session yet" and requests <= _FEW * connections:
        return (
            f"The saving is not known yet: there {'is' if requests == 1 else 'are'} only "
            f"{plural(requests, 'fetch', 'fetches')} on {plural(connections, 'connection')}. Capture for at "
            "least an hour."
        )
    if saving_known(reason):
        return ""
    of = f"{number(report['passed'][reason]['exchanges'])} of {number(requests)} fetches"
    if step := unread_packets(report["input"]["unread_packets"], report["input"]["packets"]):
        return f"The saving can't be computed: {of} are incomplete; {step}"
    if reason == "unpaired":
        return f"The saving can't be computed: {of} have no response; capture both directions."
    if report["readable"]["by_reason"].get(CUT):
        return f"The saving can't be computed: {of} were cut; capture with -s 0."
    return f"The saving can't be computed: {of} lack bytes that were not captured; capture again."


def no_consumer(report: Report) -> bool:
    """Return whether all fetches are those of brokers and controllers."""
    return set(report["passed"]) == {"not a consumer"} and not report["fetch"]["eligible"]["exchanges"]


def saving_known(reason: str) -> bool:
    """Return whether the saving is known, from the reason why nothing is saved (`decision.why`)."""
    return reason not in _UNTOLD


def because(reason: str) -> str:
    """Explain why nothing is saved: the reason itself, and what it means."""
    explained = meaning(reason)
    return f"{reason} ({explained})" if explained else shown(reason, empty="there was nothing to leave out")


def how_sure(report: Report) -> str:
    """Describe the captured time on which the report's first line is based; "" if the saving is not known."""
    decision, time = report["decision"], report["time"]
    if untold(report):
        return ""
    seconds = decision["captured_seconds"]
    money = report["modelled"]["money"]
    if not seconds:
        lacking = ", no money a month, and no net sum" if money else ""
        return (
            f"How sure: no time passed in the capture, so there is no saving a day{lacking}: capture for at "
            "least an hour."
        )
    if seconds < LEAST:
        more = ", a month or a net sum" if money else ""
        return (
            f"How sure: {duration(seconds)} is too short to say anything of a day{more}: capture for at "
            "least an hour."
        )
    stretches = len(time["stretches"])
    parts = f" in {stretches} stretches" if stretches > 1 else ""
    text = f"{duration(seconds)} captured{parts}"
    if seconds >= 60:
        text += f" ({seconds:,.0f} seconds)"
    if decision["enough"]:
        return f"How sure: estimated from {text}."
    return f"How sure: not very. Only {text}, less than an hour: a day may be quite different."


def on_loopback(report: Report) -> str:
    """Say that fetches on loopback cost nothing; "" if not all are, or if the saving is not known."""
    if untold(report) or not report["input"]["loopback"]:
        return ""
    return (
        "All fetches are on this host's loopback: they cost nothing unless something forwards them (ssh -L, "
        "kubectl port-forward, a proxy)."
    )


def in_30_days(report: Report) -> str:
    """Return the money that is saved in a month, after that of the captured time; "" if no time passed."""
    money = report["modelled"]["money"]
    if money is None or money["saved_per_month"] is None:
        return ""
    seconds = report["decision"]["captured_seconds"]
    month = estimated_amount(money["saved_per_month"], money["currency"], seconds)
    return f", or {month} in 30 days of the same traffic"


def counted_twice(report: Report) -> list[str]:
    """Return warnings about fetches that count twice, and the options to use. They precede all figures."""
    twice = [
        f"{_two_sides(row['client_side'], row['broker_side'], row['connections'])}: "
        f"{size(row['fetch_bytes'])} of fetches count twice."
        for row in report["both_sides"]
    ]
    if not twice:
        return []
    sides = [(row["client_side"], row["broker_side"]) for row in report["both_sides"]]
    first = "Both sides of a gateway were captured. Fetches count twice, so the figures below are wrong."
    return [first, *twice[:_WARNINGS], _one_side(sides, [row["broker"] for row in report["by_broker"]])]


def problem(found: Problem) -> str:
    """Name a part of the input that could not be read, and say why."""
    text = shown(found["problem"])
    return f"{shown(found['file'])}: {text}" if found["file"] else text


def unread(report: Report) -> str:
    """Say which file could not be read to its end, the first of them; "" if all could."""
    problems = report["input"]["problems"]
    if not problems:
        return ""
    more = f" ({plural(len(problems) - 1, 'more problem')} below)" if problems[1:] else ""
    return f"Not all of the input could be read: {problem(problems[0])}{more}."


def warnings(report: Report) -> list[str]:
    """Return warnings about figures that readers may misunderstand."""
    slots = [
        f"{shown(row['broker'])} would need {number(row['requested_at_once'])} session slots, and a broker "
        f"has {number(row['slots'])} by default: raise max.incremental.fetch.session.cache.slots."
        for row in report["slots"]
        if row["requested_at_once"] > row["slots"]
    ]
    return slots[:_WARNINGS]


def _two_sides(client_side: str, broker_side: str, connections: int) -> str:
    return (
        f"{plural(connections, 'connection')} of {shown(client_side)} and {shown(broker_side)} are the two "
        "sides of a gateway"
    )


def both_sides(
    found: Mapping[tuple[str, str], int],
    fetched: Collection[str],
    *,
    twice: str,
    verb: str = "Measure",
    same_port: str = NAME_HOSTS,
) -> list[str]:
    """Return warnings about gateways of which both sides were captured, and which options to use.

    Args:
        found: the number of connections by the addresses of both sides, first the clients' side.
        fetched: the addresses of all brokers that got fetches.
        twice: what happens to the fetches.
        verb: what the command does with one side.
        same_port: what to do if both sides use the same port.
    """
    lines = [f"{_two_sides(*sides, count)}: {twice}." for sides, count in sorted(found.items())[:_WARNINGS]]
    return [*lines, _one_side(found, fetched, verb, same_port)] if lines else []


def _one_side(
    sides: Collection[tuple[str, str]],
    fetched: Collection[str],
    verb: str = "Measure",
    same_port: str = NAME_HOSTS,
) -> str:
    """Advise options that leave out the brokers' side of each gateway, so that connections count once."""
    ports = ports_of_one_side(sides, fetched)
    if not ports:
        return f"{verb} one side: both use the same port, so {same_port}."
    twice = {broker_side for _, broker_side in sides}
    brokers = {_port(side) for side in twice}
    lost = sum(_port(other) in brokers for other in set(fetched) - twice)
    also = f" That leaves out {plural(lost, 'broker')} without a gateway, too." if lost else ""
    return f"{verb} one side: {' '.join(f'--port {shown(port)}' for port in ports)}.{also}"


def ports_of_one_side(sides: Collection[tuple[str, str]], fetched: Collection[str]) -> list[str]:
    """Return the ports that leave out the brokers' side of each gateway.

    Empty if there is no gateway, or if both sides of one use the same port.
    """
    clients = {_port(client_side) for client_side, _ in sides}
    twice = {broker_side for _, broker_side in sides}
    brokers = {_port(side) for side in twice}
    if not sides or clients & brokers:
        return []
    ports = clients | {_port(other) for other in set(fetched) - twice} - brokers
    return sorted(ports, key=lambda port: (len(port), port))


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def next_step(
    *,
    kafka: int,
    payload: Mapping[str, int],
    ports: Collection[int] = (),
    other_ports: Mapping[int, int] | None = None,
    filters: Sequence[str] = (),
    unread: Mapping[str, int] | None = None,
    packets: int = 0,
    left_out: int = 0,
    more: str = "",
) -> str:
    """Return advice for a capture without fetches.

    Args:
        kafka: connections that speak Kafka.
        payload: bytes in the streams of all connections, by the reason why they were not read.
        ports: the ports of --port.
        other_ports: packets that --port excludes, by port.
        filters: the given options that can leave out fetches of a Kafka connection, such as --client.
        unread: packets of protocols that are not read, by protocol.
        packets: the number of all packets.
        left_out: the number of packets that --host and --port exclude.
        more: a sentence that says where to look if nothing looks like Kafka.
    """
    used = " or ".join(str(port) for port in sorted(ports))
    whole = sum(payload.values())
    if not whole and not kafka and other_ports:
        busiest = max(other_ports, key=lambda port: (other_ports[port], -port))
        return (
            f"Next: name another port: no connection uses port {used}; most packets are on port {busiest}: "
            f"--port {busiest}. Without --port Kafka is recognised by its bytes, on any port."
        )
    tls = sum(payload.get(reason, 0) for reason in reasons.ALL)
    in_tls = bool(tls) and 2 * tls >= whole
    if not in_tls and (step := unread_packets(unread or {}, packets)):
        return f"Next: {step}"
    if not whole and not kafka and left_out:
        return (
            f"Next: name another host: {' and '.join(filters)} {'leave' if filters[1:] else 'leaves'} out "
            f"{plural(left_out, 'packet')}. `fetchgate replay inspect` lists the hosts."
        )
    if not whole and not kafka:
        return (
            f"Next: capture again: there is no {'TCP payload' if packets else 'packet'}. Capture all "
            "interfaces (tcpdump -i any) and whole packets (-s 0), and check the port of the filter."
        )
    if in_tls:
        if 2 * payload.get(reasons.NO_HANDSHAKE, 0) >= tls:
            return (
                "Next: capture again, and begin before the clients connect: a key log opens only connections "
                "whose handshake was captured. Restart the clients while the capture runs."
            )
        if 2 * payload.get(reasons.NO_SECRETS, 0) >= tls:
            return (
                "Next: find the key log of these TLS connections: the one that was given has no secrets that "
                "open them. It must have been written by their clients or brokers while the capture was "
                "taken (docs/users/captures.md)."
            )
        return (
            "Next: open the TLS connections with a key log of their clients or brokers: --keylog FILE. It "
            "must have been written while the capture was taken (docs/users/captures.md). Without one, let "
            "the clients go through `fetchgate proxy --capture DIR`: it ends TLS and writes plain captures."
        )
    if kafka and filters:
        return (
            f"Next: leave out {' and '.join(filters)}: Kafka was found, but no fetch that passes. "
            "`fetchgate replay inspect` lists the client ids and hosts. If no filter leaves a fetch out, "
            "capture where consumers run, while they run."
        )
    if kafka:
        otherwise = (
            f" Is {used} the brokers' port? Without --port Kafka is recognised by its bytes." if ports else ""
        )
        return f"Next: capture where consumers run, while they run: Kafka was found, but no fetch.{otherwise}"
    if ports:
        return (
            f"Next: check on which port the brokers listen: no connection of port {used} speaks Kafka. "
            "Without --port Kafka is recognised by its bytes, on any port."
        )
    return (
        "Next: name the port on which the brokers listen: --port N. Without it Kafka is recognised by its "
        "bytes, and no connection looks like Kafka." + more
    )


def unread_packets(unread: Mapping[str, int], packets: int) -> str:
    """Return advice if at least a quarter of the packets are of protocols that are not read; "" otherwise.

    If all messages of one direction are in two fragments each, and the other direction acknowledges each of
    them, two packets of five are fragments.
    """
    count = sum(unread.values())
    if not count or 4 * count < packets:
        return ""
    return (
        "capture on a client's or a broker's host, on all interfaces (tcpdump -i any): "
        f"{number(count)} of {plural(packets, 'packet')} are not read ({by_protocol(unread)}). At the "
        "interface that Kafka itself uses, packets are whole and in no tunnel."
    )


def by_protocol(unread: Mapping[str, int]) -> str:
    """List packets that are not read, by protocol, the most frequent first."""
    order = sorted(unread.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{shown(protocol)} {number(count)}" for protocol, count in order)


def captured(report: Report) -> str:
    """Describe the input: its time, its size, and its contents."""
    read, time = report["input"], report["time"]
    what = (
        f"{plural(read['connections'], 'Kafka connection')} in {plural(read['packets'], 'packet')}, "
        f"{size(read['bytes'])} of {plural(read['files'], 'file')}"
    )
    if not time["first"]:
        return what
    span = duration(time["captured_seconds"])
    if more := len(time["stretches"]) - 1:
        begin, end = moment(time["first"]), moment(time["last"])
        return f"{span} captured between {begin} and {end}, with {plural(more, 'gap')}: {what}"
    return f"{span} from {moment(time['first'])}: {what}"


def narrowed(filters: Filters) -> str:
    """Describe the filters of the report; "" if there are none."""
    given = (
        ("port", [str(port) for port in filters["ports"]]),
        ("host", filters["hosts"]),
        ("client", filters["clients"]),
        ("topic", filters["topics"]),
    )
    parts = [f"{noun} {', '.join(shown(name) for name in names)}" for noun, names in given if names]
    return f"Only {'; '.join(parts)}." if parts else ""


def unpaired(report: Report) -> str:
    """Describe how many exchanges were captured only in part; "" if none."""
    read = report["input"]
    halves = (
        (read["unpaired_requests"], "request", "without a response"),
        (read["unpaired_responses"], "response", "without a request"),
        (read["gaps"], "gap", "in the streams"),
    )
    return ", ".join(f"{plural(count, noun)} {which}" for count, noun, which in halves if count)


def encrypted(decrypted: int, others: Mapping[str, int]) -> str:
    """Say how many TLS connections were decrypted, and how many not, by reason; "" if there is no key log."""
    late = {reason: count for reason, count in others.items() if reason != reasons.TLS}
    if not decrypted and not late:
        return ""
    words = {
        reasons.TLS: "no key log",
        reasons.NO_SECRETS: "no secrets in the key log",
        reasons.NO_HANDSHAKE: "handshake not captured",
        reasons.UNSUPPORTED: "version or cipher not supported",
        reasons.RENEGOTIATED: "renegotiated",
    }
    text = f"TLS: {plural(decrypted, 'connection')} decrypted"
    not_read = [f"{number(count)} not ({words[reason]})" for reason, count in others.items()]
    return ", ".join([text, *not_read])


def about_reading(report: Report) -> list[str]:
    """Say what else there is to know of how the capture was read. The lines have no full stop."""
    read, left_out = report["input"], report["readable"]["left_out_bytes"]
    not_read, apart = read["unread_packets"], read["clocks_apart_seconds"]
    lines = (
        f"Contents of records that were left out, which no figure needs: {size(left_out)}"
        if left_out
        else "",
        copied(read["copied_connections"]),
        f"The clocks of requests and responses are {apart * 1000:,.0f} ms apart" if apart else "",
        encrypted(read["decrypted_connections"], read["encrypted_connections"]),
        f"Packets not read: {by_protocol(not_read)}" if not_read else "",
    )
    return [line for line in lines if line]


def copied(count: int) -> str:
    """Say how many connections were captured twice, and how they count; "" if none were."""
    if not count:
        return ""
    were, count_once = ("was", "counts") if count == 1 else ("were", "count")
    return f"{plural(count, 'connection')} {were} captured twice, before and after NAT, and {count_once} once"


def session_counts(report: Report) -> str:
    """Describe the kinds of the eligible fetches through sessions."""
    actual, sessions = report["fetch"]["actual"], report["fetch"]["sessions"]
    return (
        f"Through sessions: {number(sessions['full'])} full, {number(sessions['incremental'])} incremental "
        f"and {number(sessions['sessionless'])} sessionless fetches; partitions: "
        f"{number(sessions['added'])} added, {number(sessions['altered'])} altered, "
        f"{number(sessions['forgotten'])} forgotten. With sessions, the requests list "
        f"{plural(sessions['partitions_requested'], 'partition')}, the responses "
        f"{number(sessions['partitions_answered'])}. As captured, all requests list "
        f"{number(actual['partitions_requested'])}, the responses "
        f"{number(actual['partitions_answered'])}. Closing "
        f"sessions took {size(sessions['close_bytes'])}, repairing them {size(sessions['repair_bytes'])}."
    )


def spread(found: CooperativeReport, limit: int) -> list[str]:
    """Explain the table of groups, which has at most `limit` rows, and what it does not count."""
    members = found["members"]
    told = (
        f"How evenly the records of each group would spread over {members} members. As with `fetchgate proxy "
        f"--cooperative`, topics with fewer than {members} partitions are shared. Evenness is the largest "
        f"member's share times {members}: 1 means even. Members can't share a key, so the hottest key limits "
        "the speed of the group, with any number of members. If a connection got a record again, it counts "
        "once; if two connections got it, it counts twice."
    )
    lines = [told]
    if unknown := sum(row["group"] is None for row in found["groups"]):
        lines.append(
            f"{plural(unknown, 'client id')}: no group or several in captured requests. Each has its own row."
        )
    if unread := sum(row["unread_bytes"] for row in found["groups"]):
        lines.append(
            f"Not read: {size(unread)} of batches and responses that were cut, damaged, or older than Fetch "
            "v4 or Kafka 0.11."
        )
    if any(row["hottest_key"] and not row["hottest_key"]["exact"] for row in found["groups"]):
        lines.append("If a topic has too many keys to count each, its hottest key has <= this share.")
    if more := len(found["groups"][limit:]):
        lines.append(f"And {plural(more, 'more group')}; the JSON has all.")
    return lines


def limits(report: Report) -> str:
    """Describe how far responses exceed their limits, and how long partitions starved."""
    found = report["limits"]
    limit = (
        f"{size(found['max_fetch_bytes'])} or their own limit" if found["max_fetch_bytes"] else "their limit"
    )
    over, by = "No responses", ""
    if found["over_limit"]:
        over = plural(found["over_limit"], "response")
        by = f", by {size(found['over_limit_bytes'])} in all"
    text = (
        f"{over} of {number(found['responses'])} had more records than {limit} (max_bytes){by}; the largest "
        f"had {size(found['largest_record_bytes'])}."
    )
    if not found["starved"]:
        return f"{text} No partition starved."
    times = "once" if found["starved"] == 1 else f"{number(found['starved'])} times"
    return (
        f"{text} Partitions starved {times}, for {duration(found['starved_seconds'])} in all: they had "
        "records but got none, while other partitions of the response got records."
    )
