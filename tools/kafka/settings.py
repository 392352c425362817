"""server.properties: the settings that differ from Kafka's defaults."""

from collections.abc import Mapping
from pathlib import Path

HOST = "127.0.0.1"
SESSION_TIMEOUT_MS = 6000
SESSION_EXPIRY = SESSION_TIMEOUT_MS / 1000 + 1
"""Seconds until ZooKeeper has forgotten a killed broker. Until then the broker's id is in use."""

LOG4J: dict[str, object] = {
    "log4j.rootLogger": "WARN, stderr",
    "log4j.appender.stderr": "org.apache.log4j.ConsoleAppender",
    "log4j.appender.stderr.Target": "System.err",
    "log4j.appender.stderr.layout": "org.apache.log4j.PatternLayout",
    "log4j.appender.stderr.layout.ConversionPattern": "%d{HH:mm:ss,SSS} [%t] %p %c - %m%n",
}
"""The log settings for Kafka 1.0, which uses log4j. All later releases use slf4j."""

PROTOCOL_MAP = "listener.security.protocol.map"
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

Properties = Mapping[str, object]
Listeners = Mapping[str, tuple[str, int] | None]

QUICK: dict[str, object] = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 16,  # a slot for each member of a cooperative group; the default is 50
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "log.segment.delete.delay.ms": 1000,
    "log.cleaner.dedupe.buffer.size": 8 << 20,  # the default is 128 MB of the heap
    "log.cleaner.backoff.ms": 500,
}
"""Settings that make a broker start quickly and tests wait less. All other settings are Kafka's defaults."""

QUICK_KRAFT: dict[str, object] = {
    "broker.session.timeout.ms": 6000,  # a killed broker can only register again after that
    "broker.heartbeat.interval.ms": 500,
    "share.coordinator.state.topic.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
}


def security_protocol(listener: str) -> str:
    """Return the protocol that a listener's name, or its part after a dash, is; else PLAINTEXT."""
    name = listener.rpartition("-")[2]
    return name if name in SECURITY_PROTOCOLS else "PLAINTEXT"


def write_properties(path: Path, settings: Properties) -> None:
    """Write a Java properties file."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


def listener_list(addresses: Mapping[str, tuple[str, int]]) -> str:
    """Format addresses by listener for the setting `listeners`."""
    return ",".join(f"{name}://{host}:{port}" for name, (host, port) in addresses.items())
