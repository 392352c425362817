"""How figures, names and the report's own sentences are written, the same in the terminal and in HTML."""

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from replay.report.model import Filters, Report

POLICY: Final = {
    "gateway": "Policy gateway: what fetchgate in front of these clients would have done, with a session "
    "where it pays and full fetches where it does not.",
    "always": "Policy always: a session for every connection from its first eligible fetch on, kept to its "
    "end. It shows what sessions can do; the gateway turns them down where they do not pay.",
}
FORMULA: Final = (
    "Predicted broker side = what the eligible fetches cost through the gateway's own session engine, "
    "closing and repairing sessions included, + all other fetches as they were captured."
)
SAVED: Final = (
    "Saved = eligible fetches as captured - the same through sessions, both directions; "
    "the percentage is of all captured fetch bytes."
)
COUNTED: Final = (
    "Bytes are counted, on whole Kafka frames with their 4-byte length, and 1 MB is 10^6 of them. "
    "What is modelled stands apart and is named so."
)
MODELLED: Final = "Modelled, not counted"
ELIGIBLE: Final = (
    "Eligible is a consumer's full fetch that was captured with its response and that the engine could take; "
    "sessions that clients have already are measured as they are and are no saving."
)
REST: Final = "(rest of each frame)"
"""The row of by_topic that is no topic's; no topic can be named so."""
ShareKey = Literal["record_bytes", "entry_bytes", "other_bytes", "listing_bytes", "empty_entry_bytes"]
SHARES: Final[dict[ShareKey, tuple[str, str]]] = {
    "record_bytes": ("Records", "what the consumers wanted"),
    "entry_bytes": ("Other entries", "answered partitions with news, without their records"),
    "other_bytes": ("Rest of the frames", "headers, session fields, topic names of responses"),
    "listing_bytes": ("Listing", "partitions listed in requests"),
    "empty_entry_bytes": ("Empty entries", "answered partitions without news"),
}
"""For each key of `model.Shares`: what it is called, and what it is. Last what sessions avoid."""

REASONS: Final = {
    "native session": "the client has sessions of its own and is measured as it is",
    "unpaired": "the request was captured without its response",
    "bytes missing": "part of the request or of the response was not captured",
    "not understood": "request or answer is not as the protocol has it",
    "not a consumer": "a replica's fetch, from broker to broker",
    "tags": "the request carries tagged fields that sessions were not tried with",
}
_FAMILIES: Final = {
    "fetch v": "a version that no session can carry, or that is newer than this fetchgate",
    "error ": "the broker answered the whole fetch with this error code of Kafka's",
}

MAX_NAME: Final = 120
"""Characters of a name that are shown: a client id can have 32 kB."""
_UNITS: Final = ("kB", "MB", "GB", "TB", "PB")


def size(count: int) -> str:
    """Write bytes with three digits and a decimal unit: "0 B", "999 B", "1.23 kB", "-45.6 MB"."""
    if abs(count) < 1000:
        return f"{count} B"
    value: float = count
    for unit in _UNITS:
        value /= 1000
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            break
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def percent(ratio: float) -> str:
    """Write a ratio with one decimal; what is not quite nothing, or not quite all, is never rounded to it."""
    if ratio < 0:
        return f"-{percent(-ratio)}"
    if 0 < ratio < 0.0005:
        return "<0.1 %"
    if 0.9995 <= ratio < 1:
        return ">99.9 %"
    return f"{ratio * 100:.1f} %"


def number(count: int) -> str:
    """Write a count with its thousands apart."""
    return f"{count:,}"


def plural(count: int, noun: str) -> str:
    """Write a count with its noun: "1 file", "2 files"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def printable(name: str) -> str:
    r"""Write a peer's name so that it cannot act: no control, no bidirectional override, no lone surrogate.

    Such characters are written as Python escapes them, as in "\x1b[2J".
    """
    return name if name.isprintable() else "".join(_escaped(character) for character in name)


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


def shown(name: str, *, empty: str = "(none)") -> str:
    """Write a peer's name for a reader: printable, and cut where it is endless."""
    text = printable(name[: MAX_NAME + 1])
    if len(text) > MAX_NAME:
        return text[:MAX_NAME] + "..."
    return text or empty


def meaning(reason: str) -> str:
    """Explain why a fetch was not eligible, "" where the reason speaks for itself."""
    families = (words for begin, words in _FAMILIES.items() if reason.startswith(begin))
    return REASONS.get(reason) or next(families, "")


def price(amount: float) -> str:
    """Write money; what is not quite nothing is never rounded to it."""
    return "<0.01" if 0 < amount < 0.01 else f"{amount:,.2f}"


def seconds_between(first: str, last: str) -> float:
    """Seconds from one ISO time to another, 0.0 where there is none."""
    if not first or not last:
        return 0.0
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


def duration(seconds: float) -> str:
    """Write a span of time with the two units that matter: "9.9 s", "3 min 5 s", "2 d 4 h"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = timedelta(seconds=round(seconds))
    minutes, rest = divmod(whole.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    units = ((whole.days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    first = next(place for place, (value, _) in enumerate(units) if value)
    return " ".join(f"{value} {unit}" for value, unit in units[first : first + 2] if value)


def moment(time: str) -> str:
    """Write an ISO time to the second, in UTC."""
    return datetime.fromisoformat(time).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def captured(report: Report) -> str:
    """Say what was read: when, how much, of what."""
    read, time = report["input"], report["time"]
    what = (
        f"{plural(read['connections'], 'Kafka connection')} in {plural(read['packets'], 'packet')}, "
        f"{size(read['bytes'])} of {plural(read['files'], 'file')}"
    )
    if not time["first"]:
        return what
    span = duration(seconds_between(time["first"], time["last"]))
    return f"{span} from {moment(time['first'])}: {what}"


def narrowed(filters: Filters) -> str:
    """Say what the report was narrowed to, "" where it was not."""
    given = (
        ("port", [str(port) for port in filters["ports"]]),
        ("host", filters["hosts"]),
        ("client", filters["clients"]),
        ("topic", filters["topics"]),
    )
    parts = [f"{noun} {', '.join(shown(name) for name in names)}" for noun, names in given if names]
    return f"Only {'; '.join(parts)}." if parts else ""


def unpaired(report: Report) -> str:
    """Say what was seen by half, "" where nothing was."""
    read = report["input"]
    halves = (
        (read["unpaired_requests"], "request", "without a response"),
        (read["unpaired_responses"], "response", "without a request"),
        (read["gaps"], "gap", "in the streams"),
    )
    return ", ".join(f"{plural(count, noun)} {which}" for count, noun, which in halves if count)


def session_counts(report: Report) -> str:
    """Say what the sessions did with the eligible fetches."""
    actual, sessions = report["fetch"]["actual"], report["fetch"]["sessions"]
    return (
        f"Through sessions: {number(sessions['full'])} full, {number(sessions['incremental'])} incremental "
        f"and {number(sessions['sessionless'])} sessionless fetches; partitions: "
        f"{number(sessions['added'])} added, {number(sessions['altered'])} altered, "
        f"{number(sessions['forgotten'])} forgotten. They name {number(sessions['partitions_requested'])} "
        f"partitions and are answered {number(sessions['partitions_answered'])}; the capture as a whole has "
        f"{number(actual['partitions_requested'])} and {number(actual['partitions_answered'])}. Closing "
        f"sessions took {size(sessions['close_bytes'])}, repairing them {size(sessions['repair_bytes'])}."
    )
