"""The server half of KIP-227: the gateway itself gives fetch sessions to clients. Sans-IO.

- **FetchManager** decides the context of a client's fetch (fetch-semantics 2.2).
- A **context** is full, sessionless or incremental: it has the full fetch to send toward the broker, and
  makes the client's response from the full response. Or it is an error or the end of a session: it has the
  client's response at once.
- **FetchSessionCache** holds the slots, in shards, and decides evictions (fetch-semantics 2.7).
- A **FetchSession** is one client's session. Its partitions are stored as columns.

Toward the broker, the gateway may use a session of its own. The two sessions are independent (fetch-semantics
6.11).

The stage `ClientSessions` handles the fetches of one client.
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
