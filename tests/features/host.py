"""A process that runs one feature, for tests without a server."""

from proxy.server.acceptor import Acceptor
from proxy.server.host import Host
from proxy.server.process import Process
from proxy.server.registry import brokers_of


def host_of(process: Process) -> Host:
    """Return what a feature gets of a process."""
    return Host(process, brokers_of(process, Acceptor(process)))
