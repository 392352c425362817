"""A maximum age of connections: ``--max-connection-age``."""

from typing import TYPE_CHECKING, Final

from proxy.features.connection_age.options import AgeOptions
from proxy.features.feature import Feature, Process, Reports

if TYPE_CHECKING:
    from proxy.features.connection_age.running import Aged, Ages


def _begin(_process: Process, options: AgeOptions) -> "Ages":
    from proxy.features.connection_age.running import Ages  # noqa: PLC0415 - as `Feature.begin` asks

    return Ages(options)


def _reports() -> "Reports[AgeOptions, Aged]":
    from proxy.features.connection_age.running import REPORTS  # noqa: PLC0415 - as `Feature.reports` asks

    return REPORTS


FEATURE: Final = Feature(options=AgeOptions, after="handshake_timeout", begin=_begin, reports=_reports)
