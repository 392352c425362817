"""What a feature is. A folder of `proxy.features` exports one `Feature`, by the name ``FEATURE``.

The module with `Feature` is imported with the options, for each command, so it imports nothing heavy.
A feature imports `proxy.core`, `proxy.prometheus` and what is below. All that it needs of a process comes as
`Process`.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from proxy.text.options import Section

if TYPE_CHECKING:
    from proxy.addresses import Address, Broker
    from proxy.core.connection import Connection, MakeStage
    from proxy.logger import Logger
    from proxy.prometheus.figure import Figure

_Options = TypeVar("_Options", bound=Section)
_Counted = TypeVar("_Counted")


class Process(Protocol):
    """What a feature may use of its process."""

    @property
    def log(self) -> "Logger": ...

    @property
    def transparent(self) -> bool: ...

    @property
    def brokers_known(self) -> "Mapping[int, Broker]":
        """By id."""

    def note(self, kind: str, text: str, *, warning: bool = False) -> None:
        """Add a recent event. `text` is a sentence."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...

    def repeated(self, event: str) -> "Repeats":
        """Return what logs problems of clients with this message."""

    async def ips(self, host: str) -> Sequence[str]:
        """Return the IPs of a host.

        Raises:
            OSError: the host can't be looked up.
            ValueError: this is no host name.
        """


class LinkInfo(Protocol):
    """What a feature may use of a link: a client with its broker."""

    node_id: int | None
    core: "Connection"

    @property
    def broker_address(self) -> "Address | None":
        """None until the link is connected."""

    @property
    def may_end(self) -> bool:
        """Whether the link is open, and may end now: what a client sends is read, and no request is begun."""

    def close_session(self, reason: str, within: float) -> None:
        """Read no more requests, finish those in flight within some seconds, and end the link."""


class Running(Generic[_Options, _Counted]):
    """The part of a process that one feature adds, with its stages. These methods do nothing."""

    def stages(self, _link: LinkInfo) -> "Sequence[MakeStage]":
        """Return the functions that make the stages of a new connection, in order.

        The link has no core yet.
        """
        return ()

    def reloaded(self, options: _Options) -> None:
        """Apply new options, also to open connections. Plans that were made before are not used again."""

    @property
    def asks_brokers(self) -> bool:
        """Whether its stages ask other brokers, on the client's own connections there: see `Asker`."""
        return False

    def unreachable(self, link: LinkInfo) -> None:
        """Note that a link's broker could not be reached."""

    def look(self, links: Iterable[LinkInfo]) -> None:
        """Do what is due. This is called every few seconds with the open links."""

    def closed(self, link: LinkInfo) -> None:
        """Note that a link has closed."""

    def described(self, _link: LinkInfo) -> Mapping[str, object]:
        """Return the fields that `/state` adds to a connection."""
        return {}

    def counted(self, _links: Iterable[LinkInfo]) -> _Counted | None:
        """Return what was counted so far. None if the feature counts nothing."""
        return None

    def problems(self) -> Iterable[str]:
        """Return what is wrong, one sentence each, for `/readyz`, the log and `fetchgate top`."""
        return ()


class Cluster(Protocol):
    """What ``fetchgate proxy --check`` has learned of the brokers."""

    @property
    def brokers(self) -> "Mapping[int, Address] | None":
        """Their addresses, by node id. There is at least one."""

    @property
    def racks(self) -> Mapping[int, str]:
        """The rack of each broker that has one."""


class Repeats(Protocol):
    """Logs the same problem of a client at most once in some minutes."""

    def happens(self, client: str, reason: str, now: float, /) -> bool:
        """Record a problem at a time in seconds. Return whether it was logged."""


class Page(NamedTuple):
    """What a page of the admin endpoint responds with."""

    document: Callable[[Any], dict[str, Any]]
    """Returns the page, of what was counted."""
    absent: str
    """The sentence of the response (404) if nothing is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports(Generic[_Options, _Counted]):
    """How the figures of a feature are told."""

    kind: type[_Counted]
    """What `Running.counted` returns."""
    figures: "Sequence[Figure[_Counted]]" = ()
    """The metrics. One with the name of a base's metric adds values to it."""
    state: Callable[[_Options, _Counted | None], Mapping[str, object]] = lambda _options, _counted: {}
    """Returns the fields that `/state` adds. It gets None if nothing was counted."""
    state_of_broker: Callable[[_Counted, int], Mapping[str, object]] = lambda _counted, _node_id: {}
    """Returns the fields that `/state` adds to a broker."""
    page: Page | None = None
    """What `Feature.page` responds with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature(Generic[_Options, _Counted]):
    """What a folder declares."""

    options: type[_Options]
    after: str
    """The option of the base after which these options stand in the help."""
    group: str = ""
    """The title of their group in the help. Empty if they stand in the group of `after`."""
    begin: "Callable[[Process, _Options], Running[_Options, _Counted] | None]"
    """Returns the running feature, or None if no option asks for it. It imports the rest of the folder."""
    reports: "Callable[[], Reports[_Options, _Counted]] | None" = None
    """Returns how figures and state are told. It imports them. None if there are none."""
    example: str = ""
    """Lines for the examples in the help."""
    page: str = ""
    """The path of a page of the admin endpoint. Empty if there is none."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Explanations of words in `/state`, for `fetchgate top`."""
    means: Callable[[_Options], Iterable[str]] = lambda _options: ()
    """Returns sentences for ``--check``: what the options mean."""
    fits: Callable[[_Options, Cluster], tuple[list[str], str]] = lambda _options, _cluster: ([], "")
    """Returns sentences for ``--check``: whether the options fit the brokers. And what does not fit, for the
    last line, as in "no broker is in its rack". It is empty if all does."""

    @property
    def flag(self) -> str:
        """The flag of the first option."""
        return self.options.declared()[0].flag
