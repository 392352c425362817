"""Creates a `Connection` and the objects that it needs, in one call."""

from dataclasses import fields
from typing import Any

from proxy.core.connection import BrokerInfo, Common, Connection
from proxy.core.eligibility import SessionLimits

_BROKER = {each.name for each in fields(BrokerInfo)}
_OWN = {"host", "fast"}


class Asked(Connection):
    """A `Connection` on which the attributes of `Connection.status()` can be read directly."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.status(), name)


def connect(sessions: SessionLimits, resolve: Any = None, **given: Any) -> Asked:
    """Create a connection. `given` may hold fields of `Common`, of `BrokerInfo`, and arguments of
    `Connection`.
    """
    broker = {name: given.pop(name) for name in _BROKER & given.keys()}
    own = {name: given.pop(name) for name in _OWN & given.keys()}
    return Asked(
        sessions=sessions, resolve=resolve, common=Common(**given), broker=BrokerInfo(**broker), **own
    )
