"""Limits of fetches: ``--max-fetch-bytes``, ``--fetch-min-bytes``, ``--fetch-max-wait``."""

from typing import TYPE_CHECKING, Final

from proxy.features.feature import Feature, Process, Reports
from proxy.features.limits.options import LimitOptions

if TYPE_CHECKING:
    from proxy.features.limits.running import Limits


def _begin(_process: Process, options: LimitOptions) -> "Limits":
    from proxy.features.limits.running import Limits  # noqa: PLC0415 - commands other than `proxy` do without

    return Limits(options)


def _reports() -> Reports[LimitOptions, None]:
    return Reports(
        kind=type(None),
        state=lambda options, _: {"max_fetch_bytes": dict(options.max_fetch_bytes)},
    )


_EXAMPLE: Final = """\
  fetchgate proxy --bootstrap kafka:9092 --fetch-min-bytes 64KiB,alerts=0 --fetch-max-wait 1s
      have brokers gather records before they respond: fewer fetches, records up to a second later; not for
      the client id alerts
"""
FEATURE: Final = Feature(
    options=LimitOptions, after="keep_order", begin=_begin, reports=_reports, example=_EXAMPLE
)
