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
from typing import Final

from replay.report.model import (
    BothSides,
    BrokerRow,
    ClientRow,
    ConnectionRow,
    CooperativeReport,
    CooperativeRow,
    Decision,
    Filters,
    LimitsReport,
    Net,
    NetPaying,
    Problem,
    Report,
    SlotsRow,
    ToDo,
    TopicRow,
)
from replay.report.zones_model import ZonesReport

MAX_KEY: Final = 64
"""The maximum of bytes in a key (the limit of blake2b)."""
_ADDRESS: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){3,7}")
"""IPv4 and IPv6 addresses in a sentence. An IPv6 address has at least three colons; a time has two."""
_ENDPOINT: Final = re.compile(r"(?P<host>\[[^\]]*\]|[^\s:\[\]]+):(?P<port>\d+)")


def anonymize(report: Report, key: bytes = b"") -> Report:
    """Return the report with pseudonyms for client ids, groups, topics, hosts, racks and file names.

    `key` is a secret of at most `MAX_KEY` bytes. Somebody who does not know it can't test guessed names.
    Reports with the same key can be compared.
    """
    return _Pseudonyms(key).report(report)


class _Pseudonyms:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def report(self, report: Report) -> Report:
        read = report["input"]
        made: Report = {
            **report,
            "filters": self._filters(report["filters"]),
            "decision": self._decision(report["decision"]),
            "input": {**read, "problems": [self._problem(problem) for problem in read["problems"]]},
            "both_sides": [self._both_sides(row) for row in report["both_sides"]],
            "by_client": [self._client(row) for row in report["by_client"]],
            "by_topic": [self._topic(row) for row in report["by_topic"]],
            "by_broker": [self._broker(row) for row in report["by_broker"]],
            "connections": [self._connection(row) for row in report["connections"]],
            "slots": [self._slots(row) for row in report["slots"]],
            "limits": self._limits(report["limits"]),
        }
        if "floors" in report:
            made["floors"] = {
                **report["floors"],
                "by_client": [
                    {**row, "client_id": self._name("client", row["client_id"])}
                    for row in report["floors"]["by_client"]
                ],
            }
        if net := report["modelled"]["net"]:
            made["modelled"] = {**report["modelled"], "net": self._net(net)}
        if "cooperative" in report:
            made["cooperative"] = self._cooperative(report["cooperative"])
        if "zones" in report:
            made["zones"] = self._zones(report["zones"])
        return made

    def _name(self, kind: str, name: str) -> str:
        """Return a pseudonym such as "client-k7m2qx5p"; "" for ""."""
        if not name:
            return ""
        text = name.encode(errors="surrogatepass")
        # 40 bits: two names hardly ever have the same pseudonym.
        digest = blake2b(text, key=self._key, person=kind.encode(), digest_size=5).digest()
        return f"{kind}-{b32encode(digest).decode().lower()}"

    def _endpoints(self, text: str) -> str:
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

    def _decision(self, decision: Decision) -> Decision:
        to_do: list[ToDo] = [
            {**row, "client_id": self._name("client", row["client_id"])} for row in decision["to_do"]
        ]
        return {**decision, "to_do": to_do}

    def _client(self, row: ClientRow) -> ClientRow:
        return {**row, "client_id": self._name("client", row["client_id"])}

    def _topic(self, row: TopicRow) -> TopicRow:
        return {**row, "topic": None if row["topic"] is None else self._name("topic", row["topic"])}

    def _broker(self, row: BrokerRow) -> BrokerRow:
        return {**row, "broker": self._endpoints(row["broker"])}

    def _both_sides(self, row: BothSides) -> BothSides:
        client_side, broker_side = map(self._endpoints, (row["client_side"], row["broker_side"]))
        return {**row, "client_side": client_side, "broker_side": broker_side}

    def _slots(self, row: SlotsRow) -> SlotsRow:
        return {**row, "broker": self._endpoints(row["broker"])}

    def _limits(self, limits: LimitsReport) -> LimitsReport:
        return {
            **limits,
            "by_client": [
                {**row, "client_id": self._name("client", row["client_id"])} for row in limits["by_client"]
            ],
            "longest": [
                {
                    **row,
                    "client_id": self._name("client", row["client_id"]),
                    "broker": self._endpoints(row["broker"]),
                    "topic": self._name("topic", row["topic"]),
                }
                for row in limits["longest"]
            ],
        }

    def _net(self, net: Net) -> Net:
        zoned = net["between_zones"]
        return {
            **net,
            "paying": self._paying(net["paying"]),
            "between_zones": zoned and {**zoned, "paying": self._paying(zoned["paying"])},
        }

    def _paying(self, paying: NetPaying) -> NetPaying:
        return {**paying, "addresses": [self._host(host) for host in paying["addresses"]]}

    def _cooperative(self, cooperative: CooperativeReport) -> CooperativeReport:
        rows: list[CooperativeRow] = [
            {
                **row,
                "group": None if row["group"] is None else self._name("group", row["group"]),
                "client_id": None if row["client_id"] is None else self._name("client", row["client_id"]),
            }
            for row in cooperative["groups"]
        ]
        return {**cooperative, "groups": rows}

    def _zones(self, zones: ZonesReport) -> ZonesReport:
        return {
            **zones,
            "brokers": [
                {**row, "broker": self._endpoints(row["broker"]), "rack": self._rack(row["rack"])}
                for row in zones["brokers"]
            ],
            "clients": [{**row, "rack": self._rack(row["rack"])} for row in zones["clients"]],
            "by_client": [
                {**row, "client_id": self._name("client", row["client_id"])} for row in zones["by_client"]
            ],
            "by_topic": [
                {**row, "topic": None if row["topic"] is None else self._name("topic", row["topic"])}
                for row in zones["by_topic"]
            ],
            "pairs": [
                {**row, "from": self._rack(row["from"]), "to": self._rack(row["to"])}
                for row in zones["pairs"]
            ],
            "leaders": [
                {**row, "topic": self._name("topic", row["topic"]), "rack": self._rack(row["rack"])}
                for row in zones["leaders"]
            ],
        }

    def _rack(self, rack: str | None) -> str | None:
        return None if rack is None else self._name("rack", rack)

    def _connection(self, row: ConnectionRow) -> ConnectionRow:
        return {
            **row,
            "connection": self._endpoints(row["connection"]),
            "client": self._endpoints(row["client"]),
            "broker": self._endpoints(row["broker"]),
            "client_id": self._name("client", row["client_id"]),
        }
