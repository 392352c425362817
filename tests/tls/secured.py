"""Certificates for tests of TLS, and gateway options that use them."""

import ssl
from dataclasses import dataclass

from tools.certificates import Authority, Pair


@dataclass(frozen=True)
class Keys:
    """Keys and certificates that all tests of TLS share. No test changes them."""

    ca: Authority
    other: Authority
    good: Pair
    stranger: Pair

    def to_broker(self, **more: str) -> dict[str, str]:
        return {"broker_tls": "on", "broker_tls_ca": str(self.ca.file)} | more

    def to_client(self) -> dict[str, str]:
        return {"tls_cert": str(self.good.cert), "tls_key": str(self.good.key)}

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca.file)


def serving(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    return context
