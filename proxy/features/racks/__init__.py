"""Racks: bytes with brokers are counted by zone, and clients read from the replica in the gateway's rack."""

from typing import TYPE_CHECKING, Final

from proxy.features.feature import Feature, Process, Reports
from proxy.features.racks.options import RackOptions
from proxy.features.racks.preflight import fits, means

if TYPE_CHECKING:
    from proxy.features.racks.figures import Zones
    from proxy.features.racks.running import RackAudit


def _begin(process: Process, options: RackOptions) -> "RackAudit | None":
    if not options.rack:
        return None
    from proxy.features.racks.running import RackAudit  # noqa: PLC0415 - as `Feature.begin` asks

    return RackAudit(process, options)


def _reports() -> "Reports[RackOptions, Zones]":
    from proxy.features.racks.figures import REPORTS  # noqa: PLC0415 - as `Feature.reports` asks

    return REPORTS


FEATURE: Final = Feature(
    options=RackOptions,
    after="max_sessions",
    group="zones",
    begin=_begin,
    reports=_reports,
    means=means,
    fits=fits,
)
