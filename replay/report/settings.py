"""The names of ``fetch.min.bytes`` and ``fetch.max.wait.ms`` in each client's software. Pure."""

from typing import Final

_JAVA: Final = "fetch.min.bytes", "fetch.max.wait.ms={}"
_LIBRDKAFKA: Final = "fetch.min.bytes", "fetch.wait.max.ms={}"
_PYTHON: Final = "fetch_min_bytes", "fetch_max_wait_ms={}"
_FRANZ_GO: Final = "kgo.FetchMinBytes", "kgo.FetchMaxWait={}ms"
_SETTINGS: Final = {
    "rdkafka": _LIBRDKAFKA,
    "confluent-kafka": _LIBRDKAFKA,
    "apache-kafka-java": _JAVA,
    "aiokafka": _PYTHON,
    "kafka-python": _PYTHON,
    "sarama": ("Config.Consumer.Fetch.Min", "Config.Consumer.MaxWaitTime={}ms"),
    "kgo": _FRANZ_GO,
    "franz-go": _FRANZ_GO,
    "platformatic-kafka": ("minBytes", "maxWaitTime={}"),
}
"""Both settings, by a part of the name of the client's software (KIP-511). The second has its value."""
_UNKNOWN: Final = "fetch.min.bytes", "fetch.max.wait.ms={} (fetch.wait.max.ms in librdkafka)"


def settings(software: str, min_bytes: int, wait_ms: int) -> str:
    """Return both settings with their values, as in "fetch.min.bytes to 65536, with ..."."""
    known = (names for part, names in _SETTINGS.items() if part in software)
    least, wait = next(known, _UNKNOWN)
    return f"{least} to {min_bytes}, with {wait.format(wait_ms)}"
