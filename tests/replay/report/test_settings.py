"""Advice names the settings as the client's own software does."""

import re

import pytest

from replay.report import settings
from tests.test_recipes import BROKERS


@pytest.mark.parametrize(
    ("software", "told"),
    [
        ("confluent-kafka-python 2.16.1-rdkafka-2.16.0", "fetch.min.bytes to 9, with fetch.wait.max.ms=500"),
        ("librdkafka 2.0.2", "fetch.min.bytes to 9, with fetch.wait.max.ms=500"),
        ("apache-kafka-java 4.3.0", "fetch.min.bytes to 9, with fetch.max.wait.ms=500"),
        ("kafka-python 3.0.11", "fetch_min_bytes to 9, with fetch_max_wait_ms=500"),
        ("sarama v1.61.1", "Config.Consumer.Fetch.Min to 9, with Config.Consumer.MaxWaitTime=500ms"),
        ("kgo v1.22.2", "kgo.FetchMinBytes to 9, with kgo.FetchMaxWait=500ms"),
        ("platformatic-kafka 2.2.3", "minBytes to 9, with maxWaitTime=500"),
        ("", "fetch.min.bytes to 9, with fetch.max.wait.ms=500 (fetch.wait.max.ms in librdkafka)"),
        ("new 1", "fetch.min.bytes to 9, with fetch.max.wait.ms=500 (fetch.wait.max.ms in librdkafka)"),
    ],
)
def test_each_software_has_its_own_names(software: str, told: str) -> None:
    assert settings.settings(software, 9, 500) == told


def test_the_names_are_those_of_the_page_of_clients() -> None:
    """librdkafka refuses to start with a property that it does not know."""
    rows = re.findall(r"^    (\S.*?) {2,}([\w.]+) +([\w.]+)$", BROKERS, re.MULTILINE)
    on_page = {(least, wait) for _, least, wait in rows}
    named = {(least, wait.partition("=")[0]) for least, wait in settings._SETTINGS.values()}
    assert named <= on_page
