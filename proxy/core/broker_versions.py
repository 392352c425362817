"""What a broker can do, remembered for connections whose clients do not ask for it. Sans-IO."""

from proxy.protocol.api_versions import Features


class BrokerVersions:
    """What the broker at one address said of itself, shared by the connections to it.

    It is remembered only as long as the connection is open on which the broker said it: a broker that is
    replaced, by a newer or an older one, closes that connection.
    """

    __slots__ = ("__weakref__", "_said_to", "features")

    def __init__(self) -> None:
        self.features: Features | None = None
        """What it said last; None if nothing is remembered."""
        self._said_to: object = None

    def __repr__(self) -> str:
        return f"<BrokerVersions {self.features}>"

    def remember(self, connection: object, features: Features) -> None:
        """Remember what the broker said on a connection.

        If the same is remembered already, it stays that of the earlier connection.
        """
        if features != self.features:
            self.features, self._said_to = features, connection

    def ended(self, connection: object) -> None:
        """Forget what was said on a connection that has ended."""
        if self._said_to is connection:
            self.forget()

    def forget(self) -> None:
        """Forget everything: the broker closed a connection, so it may be another one soon."""
        self.features = self._said_to = None
