"""Replaces the names in a report by stable pseudonyms, so that it can be shown to others.

A pseudonym is a keyed hash of the name and of its kind (client, topic, ...). So reports that were made with
the same key can be compared. Without a secret key, anybody can guess a name (addresses and common topic names
are easy to guess), hash it and search for the hash.

Ports, software and its versions, times, and counts of bytes and partitions stay as they are. Somebody who
knows the traffic may recognise it by them.
"""

import re
from base64 import b32encode
from hashlib import blake2b
from typing import Any, Final, cast

from replay.report.model import Report

MAX_KEY: Final = 64
"""The maximum of bytes in a key (the limit of blake2b)."""
_KINDS: Final = {
    "client_id": "client",
    "clients": "client",
    "topic": "topic",
    "topics": "topic",
    "group": "group",
    "rack": "rack",
    "from": "rack",
    "to": "rack",
    "hosts": "host",
    "addresses": "host",
    "file": "file",
}
"""What a field of the report names, wherever it is in the report. It has a name, or a list of names."""
_WITH_ENDPOINTS: Final = frozenset({"broker", "client", "connection", "client_side", "broker_side"})
"""The fields whose text has host:port, once or twice."""
_ADDRESS: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){3,7}")
"""IPv4 and IPv6 addresses in a sentence. An IPv6 address has at least three colons; a time has two."""
_ENDPOINT: Final = re.compile(r"(?P<host>\[[^\]]*\]|[^\s:\[\]]+):(?P<port>\d+)")


def anonymize(report: Report, key: bytes = b"") -> Report:
    """Return the report with pseudonyms for client ids, groups, topics, hosts, racks and file names.

    `key` is a secret of at most `MAX_KEY` bytes. Somebody who does not know it can't test guessed names.
    Reports with the same key can be compared.
    """
    return cast("Report", _Pseudonyms(key).value(report))


class _Pseudonyms:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def value(self, value: Any) -> Any:
        """Return a part of the report with pseudonyms for all names in it."""
        if isinstance(value, list):
            return [self.value(one) for one in value]
        if not isinstance(value, dict):
            return value
        found = {field: self._field(field, one) for field, one in value.items()}
        if "problem" in value:
            found["problem"] = self._problem(value["problem"], value["file"], found["file"])
        return found

    def _field(self, field: str, value: Any) -> Any:
        if field in _WITH_ENDPOINTS and isinstance(value, str):
            return _ENDPOINT.sub(lambda match: f"{self._host(match['host'])}:{match['port']}", value)
        kind = _KINDS.get(field, "")
        if kind and isinstance(value, str):
            return self._name(kind, value)
        if kind and isinstance(value, list):
            return [self._name(kind, one) if isinstance(one, str) else self.value(one) for one in value]
        return self.value(value)

    def _problem(self, problem: str, file: str, pseudonym: str) -> str:
        text = problem.replace(file, pseudonym) if file else problem
        return _ADDRESS.sub(lambda match: self._host(match[0]), text)

    def _host(self, host: str) -> str:
        return self._name("host", host)

    def _name(self, kind: str, name: str) -> str:
        """Return a pseudonym such as "client-k7m2qx5p"; "" for ""."""
        if kind == "host":
            name = name.strip("[]")
        if not name:
            return ""
        text = name.encode(errors="surrogatepass")
        # 40 bits: two names hardly ever have the same pseudonym.
        digest = blake2b(text, key=self._key, person=kind.encode(), digest_size=5).digest()
        return f"{kind}-{b32encode(digest).decode().lower()}"
