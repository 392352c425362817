"""Compares two responses to the same fetch: one through a gateway, one directly and without a session."""

from collections.abc import Sequence
from dataclasses import replace
from difflib import ndiff
from typing import TypeAlias

from tests.model.asker import entries, lines
from tests.model.wire import FetchRequest, FetchResponse, PartitionData, TopicData

FOUND_BEFORE_READING = (3, 29, 100)
BIG = 1 << 20
"""The smallest byte limit that never cuts the records of the tests."""


class DifferenceError(AssertionError):
    """The response through the gateway differs from the direct one. The message lists the different
    entries.
    """


Entry: TypeAlias = tuple[TopicData, PartitionData]
"""A partition's entry and its topic element. The element's list of partitions is not used."""


def _regrouped(response: FetchResponse, told: Sequence[Entry]) -> FetchResponse:
    """Return a copy of `response` with the entries in `told`.

    Consecutive entries of a topic share an element.
    """
    elements: list[TopicData] = []
    for topic, data in told:
        if elements and (elements[-1].topic, elements[-1].topic_id) == (topic.topic, topic.topic_id):
            elements[-1] = replace(elements[-1], partitions=(*elements[-1].partitions, data))
        else:
            elements.append(replace(topic, partitions=(data,)))
    return replace(response, topics=tuple(elements))


def in_request_order(response: FetchResponse, request: FetchRequest, *, late: bool = False) -> FetchResponse:
    """Return the response with its entries in the order of the request.

    With `late`, entries with errors that a broker finds before it reads records come last.

    Raises:
        KeyError: a partition is not in the request.
    """
    places: dict[tuple[str, bytes, int], int] = {}
    for topic in request.topics:
        for part in topic.partitions:
            places.setdefault((topic.topic, topic.topic_id, part.partition), len(places))
    told = [(topic, data) for topic in response.topics for data in topic.partitions]

    def place(entry: Entry) -> tuple[bool, int]:
        topic, data = entry
        last = late and data.error_code in FOUND_BEFORE_READING
        return last, places[topic.topic, topic.topic_id, data.partition_index]

    return _regrouped(response, sorted(told, key=place))


def _without_records(data: PartitionData) -> PartitionData:
    return replace(data, records=b"", aborted=None)


def limited(request: FetchRequest) -> bool:
    """Return whether a byte limit decides which partitions get records.

    If so, the result depends on the order of partitions in the session.
    """
    limits = [part.partition_max_bytes for topic in request.topics for part in topic.partitions]
    return min([request.max_bytes, *limits]) < BIG


def check(request: FetchRequest, got: FetchResponse, direct: FetchResponse) -> None:
    """Check that the response through a gateway has the same contents as the direct response.

    Topics and partitions may be in the order of the request, or in a broker's order. Under a byte limit,
    partitions may have more or fewer records than in the direct response.

    Raises:
        DifferenceError: there is any other difference.
    """
    ordered = in_request_order(direct, request)
    if got in (direct, ordered, in_request_order(direct, request, late=True)):
        return
    if not limited(request):
        _differ(request, got, ordered)
    mine, theirs = entries(in_request_order(got, request)), entries(ordered)
    if [_without_records(data) for data in mine] != [_without_records(data) for data in theirs]:
        _differ(request, got, ordered)
    for ours, other in zip(mine, theirs, strict=True):
        first, second = ours.records or b"", other.records or b""
        if not (first.startswith(second) or second.startswith(first)):
            _differ(request, got, ordered)
    if any(data.records for data in mine) != any(data.records for data in theirs):
        _differ(request, got, ordered)


def _differ(request: FetchRequest, got: FetchResponse, direct: FetchResponse) -> None:
    difference = "\n".join(line for line in ndiff(lines(direct), lines(got)) if line[0] in "+-")
    raise DifferenceError(f"- direct, + through, for {request}:\n{difference or 'header or element tags'}")
