"""The fast reader for the topics of Metadata finds the same values as the reader that uses the schema."""

from typing import Final

import pytest

from proxy.protocol.api import ApiKey
from proxy.protocol.messages import fields_at, read
from proxy.protocol.metadata import (
    IDS_VERSION,
    LAST_VERSION,
    LEADER_AT,
    as_rows,
    layout_of,
    node_ids,
    partitions_of,
    read_entries,
    read_topics,
)
from proxy.protocol.schemas import METADATA
from tests.core.metadata import ORDERS, OTHERS, message, partition, topic
from tests.protocol.kio_messages import encode

VERSIONS: Final = range(IDS_VERSION, LAST_VERSION + 1)


def test_topics_are_alike_in_all_versions_that_are_walked() -> None:
    forms = {
        field.fields
        for version in VERSIONS
        for field in fields_at(METADATA, version)
        if field.name == "topics"
    }
    assert len(forms) == 1


@pytest.mark.parametrize("count", [0, 1, 3, 40])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_walk_reads_what_the_schema_reads(version: int, count: int) -> None:
    topics = [
        topic(version, topic_id, [partition(version, index, index % 3, index + 5) for index in range(count)])
        for topic_id in (ORDERS, OTHERS)
    ]
    body = encode(message(version, *topics), ())
    head, walked = read_topics(body, version)
    elements = [*walked]
    layout = layout_of(version)
    found = read(METADATA, ApiKey.METADATA, version, body, 0)
    assert node_ids(head) == {broker["node_id"] for broker in found["brokers"]}
    assert [element.topic_id for element in elements] == [each["topic_id"] for each in found["topics"]]
    for element, described in zip(elements, found["topics"], strict=True):
        image = body[element.start : element.end]
        places = partitions_of(image, layout)
        entries = read_entries(image, places, layout)
        names = entries.dtype.names or ()
        assert [dict(zip(names, row.tolist(), strict=True)) for row in entries] == [
            {name: entry[name] for name in names} for entry in described["partitions"]
        ]
        spans = (element.start + as_rows(places) + LEADER_AT).tolist()
        assert spans == [entry.spans["leader_id"][0] for entry in described["partitions"]]
