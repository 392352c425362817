"""The options of ``fetchgate replay measure``."""

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from proxy.addresses import MAX_INT32, whole_number
from proxy.text.options import ConfigError, Given, option, repeated
from proxy.text.units import seconds, size, switch
from proxy.text.values import one_of
from replay.measure.racks import Network, broker_rack, client_rack
from replay.options import ReplayOptions, key_logs, on, ports
from replay.report.anonymize import MAX_KEY

MOST: Final = 256 << 20
"""Above this many bytes of captures, Spark is faster. It is no limit of memory: a local capture that is not
compressed takes about 0.2 GB, and 0.1 GB more for each GB of it."""
MEMBERS: Final = range(2, 65)
"""The allowed numbers of members."""
STDOUT: Final = "-"
"""The value of --json without a file."""
MAX_WAIT: Final = 5.0
"""The longest --fetch-max-wait in seconds, as in the gateway, whose features can be deleted."""
_CURRENCY: Final = 8
"""The maximum length of the name of a currency."""
_PRICES: Final = 1e-12, 1e15
"""The lowest and the highest price above 0. Sums of higher ones could be infinite, which JSON does not have.
Lower ones would be lines of zeros."""


def _host(text: str) -> str:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text} is not an address or a network such as 10.0.0.0/8") from None
    return text


def _min_bytes(text: str) -> int:
    if (found := size(text, lowest=1)) > MAX_INT32:
        raise ValueError(f"{text!r} is too large: min_bytes is at most {MAX_INT32}")
    return found


def _max_wait(text: str) -> int:
    if not 0 < (found := seconds(text)) <= MAX_WAIT:
        raise ValueError(
            f"{text!r} must be above 0, and at most {MAX_WAIT:g} s; a number without a unit is in seconds"
        )
    return round(found * 1e3)


def _members(text: str) -> int:
    if (number := whole_number(text, MEMBERS[0], MEMBERS[-1])) is None:
        raise ValueError(f"{text} is not a number of members ({MEMBERS[0]} to {MEMBERS[-1]})")
    return number


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise ValueError(f"{text} is not KEY=VALUE, such as spark.executor.memory=2g")
    return key, value


def _json(text: str) -> str | None:
    if "/" in text or Path(text).suffix:
        return text
    try:
        return STDOUT if switch(text) else None
    except ValueError as error:
        raise ValueError(f"{error}, or a name that ends in .json") from None


def _price(text: str) -> float:
    lowest, highest = _PRICES
    with suppress(ValueError):
        price = float(text) or 0.0  # -0.0 would be shown as such
        if price == 0 or lowest <= price <= highest:
            return price
    raise ValueError(f"{text or 'an empty text'} is not a price such as 0.02 (0, or 1e-12 to 1e15)")


def _currency(text: str) -> str:
    name = text.strip()
    if 0 < len(name) <= _CURRENCY and name.isprintable() and not any(map(str.isdigit, name)):
        return name
    raise ValueError(f"{name or 'an empty text'} is not a currency such as USD")


def _key(text: str) -> bytes:
    key = text.encode(errors="surrogateescape")
    if not 0 < len(key) <= MAX_KEY:
        raise ValueError(f"a key has 1 to {MAX_KEY} bytes")
    return key


_money = partial(option, metavar="X", parse=_price)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions(ReplayOptions):
    """The options, already checked. None, if there is no default."""

    description = "Compute from captures what incremental fetch sessions would have saved."
    takes = (
        "FILE|GLOB|DIR|-",
        "captures (pcap, pcapng, .gz, .zst, .lz4), or a table of --parquet",
    )
    examples = """\
examples:
  fetchgate replay measure fetches.pcap
  fetchgate replay measure captures/ '/var/captures/*.pcap.zst' --html report.html
  tcpdump -i any -w - tcp port 9092 | fetchgate replay measure -
  fetchgate replay measure s3://bucket/captures/ --master spark://host:7077 --parquet table/
  fetchgate replay measure table/ --policy always --client billing --json
      measures what --parquet wrote, without reading the captures again
  fetchgate replay measure captures/ --client-rack 10.0.1.0/24=az1 --client-rack 10.0.2.0/24=az2
      also reports the bytes from one zone to another; for brokers without a rack, add --broker-rack 3=az1
  fetchgate replay measure captures/ --price-per-gb 0.02 --currency USD --sidecar-cost 3.50
      also reports the saving minus the cost of sidecars, for a month and a year
  fetchgate replay measure captures/ --fetch-min-bytes 64KiB --fetch-max-wait 1s
      also reports how many fetches are saved if brokers wait for records
  fetchgate replay measure captures/ --cooperative 6
      also reports how evenly keys would spread over 6 members of each consumer group, and the share of
      the hottest key

Bytes are whole Kafka frames. Predicted bytes between gateway and brokers =
eligible fetches with sessions + all other fetches as captured.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done, but a file is not a capture, is damaged or
incomplete, has no Kafka or no fetch of a consumer, or has so few fetches, or so little of them, that the
saving can't be computed.
"""

    port: tuple[int, ...] = ports("read only this port of brokers (repeatable)")
    host: tuple[str, ...] = repeated(
        metavar="H",
        parse=_host,
        help="read only connections of this address or network (repeatable)",
    )
    client: tuple[str, ...] = repeated(
        metavar="ID",
        parse=str,
        help="count only fetches of this client id (repeatable)",
    )
    topic: tuple[str, ...] = repeated(
        metavar="T",
        parse=str,
        help="count only fetches that name this topic (repeatable)",
    )
    policy: Literal["gateway", "always"] = option(
        metavar="gateway|always",
        parse=one_of("gateway", "always"),
        default="gateway",
        help="which connections get a session; gateway: the same as with the gateway; "
        "always: every connection, from its first eligible fetch",
    )
    max_fetch_bytes: int | None = option(
        metavar="SIZE",
        parse=partial(size, lowest=1),
        help="report which responses have more records than this limit, to see the effect of `fetchgate "
        "proxy --max-fetch-bytes`; in bytes, or with a unit (10m, 256MiB, 1.5GB); by default the limit is "
        "the max_bytes of each fetch",
    )
    fetch_min_bytes: int | None = option(
        metavar="SIZE",
        parse=_min_bytes,
        help="report how many fetches `fetchgate proxy --fetch-min-bytes` would save, and how much later "
        "records would come (modelled)",
    )
    fetch_max_wait: int | None = option(
        metavar="TIME",
        parse=_max_wait,
        help=f"the same for `fetchgate proxy --fetch-max-wait`, or for both together; at most {MAX_WAIT:g}s",
    )
    """In milliseconds."""
    cooperative_members: int | None = option(
        written="--cooperative",
        metavar="N",
        parse=_members,
        help="also read the records, and report how evenly their keys would spread over N members of each "
        f"consumer group ({MEMBERS[0]} to {MEMBERS[-1]}) with `fetchgate proxy --cooperative`; the report "
        "has no keys (in the environment: FETCHGATE_COOPERATIVE_MEMBERS)",
    )
    master: str | None = option(
        metavar="URL",
        parse=str,
        help="the URL of the Spark master (default: that of spark-submit, otherwise local[*]; captures of at "
        f"most {MOST >> 20} MiB need no Spark)",
    )
    in_process: bool = on(
        help="measure larger captures without Spark, too: on one core. This needs about 0.2 GB of memory, "
        "plus 0.1 GB for each GB of captures (4 GB if they are compressed or remote)",
    )
    conf: tuple[tuple[str, str], ...] = repeated(
        metavar="KEY=VALUE",
        parse=_setting,
        help="a setting of Spark, such as spark.executor.memory=2g (repeatable); with this option, small "
        "captures are measured on Spark, too",
    )
    keylog: tuple[str, ...] = key_logs()
    json: str | None = option(
        metavar="FILE.json",
        parse=_json,
        alone="on",
        help="print the report as one JSON object; with a name that ends in .json, write it to this file "
        "instead",
    )
    """`STDOUT`, or the name of a file."""
    csv: str | None = option(metavar="FILE", parse=str, help="write the report as a CSV table too")
    html: str | None = option(metavar="FILE", parse=str, help="write the report as one HTML file too")
    parquet: str | None = option(
        metavar="DIR",
        parse=str,
        help="write the captured requests and responses as a table, which can be measured again later, or "
        "add them to such a table",
    )
    price_per_gb: float | None = _money(
        help="the price of 10^9 bytes (the sum of both ends, if you pay at both); the report then shows what "
        "the saved bytes cost",
    )
    sidecar_cost: float | None = _money(
        help="the price of one sidecar in a month; the report then shows what is left of the saving, for "
        "this capture and for 20 and 200 equal services (needs --price-per-gb and --currency)",
    )
    broker_rack: tuple[tuple[int | Network, str], ...] = repeated(
        metavar="ID=NAME",
        parse=broker_rack,
        help="the rack (zone) of a broker, by its node id, or by its address or network; by default "
        "the rack in captured Metadata (repeatable)",
    )
    client_rack: tuple[tuple[Network, str], ...] = repeated(
        metavar="CIDR=NAME",
        parse=client_rack,
        help="the rack (zone) of the clients in a network; the longest prefix counts (repeatable)",
    )
    zone_price_per_gb: float | None = _money(
        help="the price that one end pays for 10^9 bytes from one zone to another, in each direction (never "
        "the sum of both ends); the report then shows what bytes between zones cost one end, and both",
    )
    currency: str | None = option(
        metavar="NAME",
        parse=_currency,
        help="the currency of all prices, such as USD",
    )
    anonymize: bool = on(
        help="replace names and addresses in the report with pseudonyms",
    )
    anonymize_key: bytes | None = option(
        metavar="KEY",
        parse=_key,
        secret=True,
        help="like --anonymize, but with a secret key, so that nobody can check a guessed name; it is "
        "safer to set FETCHGATE_ANONYMIZE_KEY",
    )

    def check(self, given: Mapping[str, Given]) -> None:
        """Check that no sum would lack one of its parts, and that a table does not defeat --anonymize."""
        priced = [name for name in _PRICED if getattr(self, name) is not None]
        if self.currency and not priced:
            raise ConfigError(
                "--currency needs a price: --price-per-gb, --zone-price-per-gb or --sidecar-cost"
            )
        if self.sidecar_cost is not None and self.price_per_gb is None:
            raise ConfigError("--sidecar-cost needs --price-per-gb X: the price of the saved bytes")
        if priced and not self.currency:
            called = given[priced[0]].called
            raise ConfigError(f"{called} needs --currency NAME, such as USD: the currency of all prices")
        if self.parquet and (self.anonymize or self.anonymize_key):
            raise ConfigError("--parquet writes the names that --anonymize replaces: use only one of them")


_PRICED: Final = ("sidecar_cost", "price_per_gb", "zone_price_per_gb")
"""The options that are prices."""
