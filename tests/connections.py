"""Creates a `Connection` and the objects that it needs, in one call."""

from dataclasses import fields
from functools import partial
from typing import Any

from proxy.core.asking.asker import Asker, asker_of
from proxy.core.connection import BrokerInfo, Common, Connection
from proxy.core.eligibility import SessionLimits

_BROKER = {each.name for each in fields(BrokerInfo)}
_OWN = {"host", "fast"}


class Asked(Connection):
    """A `Connection` on which the attributes of `Connection.state` can be read directly."""

    @property
    def asker(self) -> Asker | None:
        """The stage that asks other brokers."""
        return asker_of(self.state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


def connect(sessions: SessionLimits, resolve: Any = None, **given: Any) -> Asked:
    """Create a connection. `given` may hold fields of `Common`, of `BrokerInfo`, and arguments of
    `Connection`.
    """
    broker = {name: given.pop(name) for name in _BROKER & given.keys()}
    own = {name: given.pop(name) for name in _OWN & given.keys()}
    if (siblings := given.pop("siblings", None)) is not None:
        asker = partial(Asker, siblings, broker.get("node_id"))
        given["stages"] = (*given.get("stages", ()), asker)
    return Asked(
        sessions=sessions, resolve=resolve, common=Common(**given), broker=BrokerInfo(**broker), **own
    )
