"""The server half of KIP-227: the gateway itself gives fetch sessions to clients. Sans-IO.

`FetchManager` decides the context of a client's fetch, `FetchSessionCache` holds the sessions. Toward the
broker, the gateway may use a session of its own. The two sessions are independent (fetch-semantics 6.11).
"""

from typing import TYPE_CHECKING, Final

from proxy.features.client_sessions.options import ClientSessionOptions
from proxy.features.feature import Feature, Process, Reports

if TYPE_CHECKING:
    from proxy.features.client_sessions.figures import ClientSessionFigures
    from proxy.features.client_sessions.running import RunningClientSessions


def _begin(_process: Process, options: ClientSessionOptions) -> "RunningClientSessions":
    from proxy.features.client_sessions.running import RunningClientSessions  # noqa: PLC0415 - as `Feature.begin` asks

    return RunningClientSessions(options)


def _reports() -> "Reports[ClientSessionOptions, ClientSessionFigures]":
    from proxy.features.client_sessions.figures import REPORTS  # noqa: PLC0415 - as `Feature.reports` asks

    return REPORTS


FEATURE: Final = Feature(options=ClientSessionOptions, after="max_sessions", begin=_begin, reports=_reports)
