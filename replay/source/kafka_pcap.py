"""The data source ``kafka-pcap``: Kafka requests and responses of captures, as a table of Spark.

    from replay.source.kafka_pcap import KafkaPcap
    spark.dataSource.register(KafkaPcap)
    spark.read.format("kafka-pcap").load("/var/tmp/captures").createOrReplaceTempView("exchanges")

The packets of one connection may be in several files (of a ring, of two taps), and a data source can't
shuffle. So each task reads all files, and keeps only its own connections, chosen by a hash of their ends:
0.8 s of CPU for each GB, and 5 to 9 s for each GB that it keeps. `measure` shuffles segments instead.
"""

import json
import os
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from proxy.addresses import MAX_INT32, whole_number
from proxy.protocol.api import ApiKey
from proxy.text.printable import brief
from proxy.text.units import did_you_mean
from replay.capture.files.secrets import load
from replay.capture.files.sources import InputError, Source, check_seen, expand, whole
from replay.capture.kafka.exchange import ConnectionEnd, Exchange
from replay.capture.kafka.exchanges import Connections
from replay.capture.kafka.pairing import Keep
from replay.capture.packets.segments import read
from replay.capture.packets.tcp import Filter
from replay.capture.tls.keylog import Secrets
from replay.source.columns import COLUMNS, batches

_LEAST: Final = 16 << 20
"""The number of bytes of captures for which one more Spark task is worth starting."""
_OPTIONS: Final = ("keylog", "partitions", "ports")
_KEPT: Final = Keep(requests=True, responses=frozenset(ApiKey))
_OF_LOAD: Final = frozenset({"path", "paths"})
"""The options that have the paths. Spark puts the arguments of `load` among the options."""


class KafkaPcap(DataSource):
    """Captures as a table with one row for each request and its response: `columns.COLUMNS`.

    The path is a file, a directory, a pattern or a URI, as for `fetchgate replay measure`; `load` takes a
    list as well. Options:

    - ``partitions``: the number of tasks. Default: the number of cores of the driver's machine, fewer for
      small captures.
    - ``ports``: the ports of brokers, with commas between them. Without it, Kafka is recognised by its bytes.
    - ``keylog``: a file with the secrets of TLS connections, as for `fetchgate replay measure --keylog`.
    """

    @classmethod
    def name(cls) -> str:
        return "kafka-pcap"

    def schema(self) -> StructType:
        return StructType(
            [
                StructField(one.name, from_arrow_type(one.type), metadata={"comment": one.meaning})
                for one in COLUMNS
            ]
        )

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - it is always that of `schema`
        """Find the capture files. Raise an InputError if an option is wrong, or a file can't be read."""
        _check_names(self.options)
        sources = expand(_paths(self.options))
        for source in sources:
            if source.problem or source.once:
                raise InputError(f"{source.name}: {source.problem or 'a pipe can be read only once'}")
        size = sum(max(source.size, 0) for source in sources)
        default = min(len(os.sched_getaffinity(0)), size // _LEAST + 1)
        parts, *_ = _numbers(self.options, "partitions") or [default]
        ports = frozenset(_numbers(self.options, "ports"))
        secrets, left_out = load([self.options["keylog"]] if "keylog" in self.options else [], sources)
        for line in left_out:
            sys.stderr.write(f"kafka-pcap: {line}\n")
        return KafkaPcapReader(sources, ports, parts, secrets)


@dataclass
class Part(InputPartition):
    """One part of the captured connections."""

    value: int


@dataclass
class KafkaPcapReader(DataSourceReader):
    """A reader of captures. It reads one part of the captured connections at a time."""

    sources: list[Source]
    ports: frozenset[int]
    parts: int
    secrets: Secrets | None

    def partitions(self) -> list[InputPartition]:
        return [Part(number) for number in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        check_seen(self.sources)
        keep = Filter(ports=self.ports, parts=self.parts, part=partition.value)
        return batches(_events(self.sources, keep, self.secrets))


def _events(
    sources: list[Source], keep: Filter, secrets: Secrets | None = None
) -> Iterator[Exchange | ConnectionEnd]:
    connections = Connections(ports=keep.ports, keep=_KEPT, secrets=secrets)
    return connections.read(read(whole(sources), keep))


def _check_names(options: MutableMapping[str, str]) -> None:
    """Refuse an unknown option, because a misspelt one would have no effect."""
    for name in options:
        if name.lower() in {*_OPTIONS, *_OF_LOAD}:
            continue
        known = ", ".join(_OPTIONS)
        raise InputError(f"kafka-pcap: no option {name}; there are {known}{did_you_mean(name, _OPTIONS)}")


def _paths(options: MutableMapping[str, str]) -> list[str]:
    if "paths" in options:  # Spark puts several into one option, as JSON
        paths: list[str] = json.loads(options["paths"])
        return paths
    if "path" not in options:
        raise InputError("kafka-pcap: no path; name a capture or a directory of captures: load(path)")
    return [options["path"]]


def _numbers(options: MutableMapping[str, str], name: str) -> list[int]:
    texts = [text.strip() for text in options.get(name, "").split(",")]
    texts = texts if texts != [""] else []
    numbers = [number for text in texts if (number := whole_number(text, 1, MAX_INT32))]
    if len(numbers) < len(texts):
        raise InputError(f"kafka-pcap: option {name}: {brief(options[name])} is not a number >= 1")
    return numbers
