"""The model of fetches that wait for records: how many are left, and what the report says about it. Pure."""

from typing import Final

from replay.report.model import FloorsReport
from replay.report.wording import duration, number, percent, plural, size

HOW: Final = (
    "the records of a connection arrive evenly in its captured time; a fetch ends when it has enough bytes, "
    "or when its wait is over"
)


def fetches_left(fetches: int, seconds: float, *, wait: float, filled: float = 0.0) -> float:
    """Return how many fetches are left if each waits for records, at most `wait` seconds.

    A fetch ends when it has got enough records, or when it has waited. If the records of a connection arrive
    evenly, its fetches end in one of these two ways. There are never more than without waiting.

    `seconds` is the time of their connections, all together. `filled` is how many fetches get enough records
    before this time. 0 if this is never enough.
    """
    return min(fetches, max(seconds / wait, filled))


def saved_by_floors(found: FloorsReport) -> str:
    """Say what floors of fetches would save, and by how much records would come later."""
    min_bytes, wait = found["fetch_min_bytes"], found["fetch_max_wait_seconds"]
    given = [f"--fetch-min-bytes {number(min_bytes)}"] if min_bytes else []
    given += [f"--fetch-max-wait {wait:g}s"] if wait else []
    requests, fewer = found["requests"], found["fewer_requests"]
    text = (
        f"With {' and '.join(given)}, a gateway would leave out {number(fewer)} of "
        f"{plural(requests, 'fetch request')} ({percent(fewer / requests if requests else 0.0)}). "
        f"That saves {size(found['saved_bytes'])} more than sessions alone."
    )
    if found["later_at_most_seconds"]:
        text += (
            f" Records would come {duration(found['later_seconds'])} later on average, and at most "
            f"{duration(found['later_at_most_seconds'])} later."
        )
    return f"{text} Modelled: {found['how']}."
