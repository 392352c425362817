"""The abilities of a broker, remembered for connections whose clients do not ask for them. Sans-IO."""

from proxy.protocol.api_versions import Features


class BrokerVersions:
    """The features of the broker at one address, shared by the connections to it.

    They are remembered only while the connection on which they were learned is open. A broker that is
    replaced by another release closes that connection.
    """

    __slots__ = ("__weakref__", "_said_to", "features")

    def __init__(self) -> None:
        self.features: Features | None = None
        """The features that were learned last. None if nothing is remembered."""
        self._said_to: object = None

    def __repr__(self) -> str:
        return f"<BrokerVersions {self.features}>"

    def remember(self, connection: object, features: Features) -> None:
        """Remember the features that a connection has learned.

        If equal features are already remembered, they stay bound to the earlier connection.
        """
        if features != self.features:
            self.features, self._said_to = features, connection

    def ended(self, connection: object) -> None:
        """Forget the features if they were learned on this connection, which has ended."""
        if self._said_to is connection:
            self.forget()

    def forget(self) -> None:
        """Forget everything. The broker closed a connection, so another broker may soon have its address."""
        self.features = self._said_to = None
