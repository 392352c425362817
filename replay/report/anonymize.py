"""Stable pseudonyms for the names in a report, so that it can be shown to others.

A pseudonym is a keyed hash of the name and of what it names, so the same name has the same pseudonym in every
report made with the same key, and reports can be compared.

What it protects from: reading names off the report. What it does not: without a key of one's own anybody can
hash a guess and look for it, and addresses and common topic names are guessed in no time; with a key that is
kept to oneself they can't. Ports, software and its versions, times, byte and partition counts stay as they
are, and may tell a colleague whose traffic it is.
"""

import re
from base64 import b32encode
from hashlib import blake2b
from typing import Final

from replay.report.model import (
    BrokerRow,
    ClientRow,
    ConnectionRow,
    Filters,
    Problem,
    Report,
    SlotsRow,
    TopicRow,
)

MAX_KEY: Final = 64
"""Bytes that a key may have (blake2b's own bound)."""
_ADDRESS: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){3,7}")
"""IPv4 and IPv6 in a sentence; three colons at least, for a time of day has two."""
_ENDPOINT: Final = re.compile(r"(?P<host>\[[^\]]*\]|[^\s:\[\]]+):(?P<port>\d+)")


def anonymize(report: Report, key: bytes = b"") -> Report:
    """Replace client ids, topic names, hosts and file names by pseudonyms.

    Args:
        report: the report object; it is not changed.
        key: a secret of at most `MAX_KEY` bytes that makes pseudonyms unguessable; reports are comparable
            where it is the same.

    Returns:
        the report with pseudonyms, everything else as it was.
    """
    return _Pseudonyms(key).report(report)


class _Pseudonyms:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def report(self, report: Report) -> Report:
        read = report["input"]
        return {
            **report,
            "filters": self._filters(report["filters"]),
            "input": {**read, "problems": [self._problem(problem) for problem in read["problems"]]},
            "by_client": [self._client(row) for row in report["by_client"]],
            "by_topic": [self._topic(row) for row in report["by_topic"]],
            "by_broker": [self._broker(row) for row in report["by_broker"]],
            "connections": [self._connection(row) for row in report["connections"]],
            "slots": [self._slots(row) for row in report["slots"]],
        }

    def _name(self, kind: str, name: str) -> str:
        """Give "client-k7m2qx9p": 40 bits, which ten thousand names hardly share. No name stays none."""
        if not name:
            return ""
        text = name.encode(errors="surrogatepass")
        digest = blake2b(text, key=self._key, person=kind.encode(), digest_size=5).digest()
        return f"{kind}-{b32encode(digest).decode().lower()}"

    def _endpoints(self, text: str) -> str:
        """Replace the host of each host:port in a text."""
        return _ENDPOINT.sub(lambda match: f"{self._host(match['host'])}:{match['port']}", text)

    def _host(self, host: str) -> str:
        return self._name("host", host.strip("[]"))

    def _filters(self, filters: Filters) -> Filters:
        return {
            "ports": filters["ports"],
            "hosts": [self._host(host) for host in filters["hosts"]],
            "clients": [self._name("client", client) for client in filters["clients"]],
            "topics": [self._name("topic", topic) for topic in filters["topics"]],
        }

    def _problem(self, problem: Problem) -> Problem:
        file = self._name("file", problem["file"])
        text = problem["problem"].replace(problem["file"], file) if file else problem["problem"]
        text = _ADDRESS.sub(lambda match: self._host(match[0]), text)
        return {"file": file, "problem": text}

    def _client(self, row: ClientRow) -> ClientRow:
        return {**row, "client_id": self._name("client", row["client_id"])}

    def _topic(self, row: TopicRow) -> TopicRow:
        return {**row, "topic": None if row["topic"] is None else self._name("topic", row["topic"])}

    def _broker(self, row: BrokerRow) -> BrokerRow:
        return {**row, "broker": self._endpoints(row["broker"])}

    def _slots(self, row: SlotsRow) -> SlotsRow:
        return {**row, "broker": self._endpoints(row["broker"])}

    def _connection(self, row: ConnectionRow) -> ConnectionRow:
        return {
            **row,
            "connection": self._endpoints(row["connection"]),
            "client": self._endpoints(row["client"]),
            "broker": self._endpoints(row["broker"]),
            "client_id": self._name("client", row["client_id"]),
        }
