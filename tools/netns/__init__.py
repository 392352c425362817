"""Network namespaces for tests, which end with the test, and links between them.

- `Namespace`: a network of its own. Code in `inside()`, and the processes that it starts, use that network.
- `veth`: a link without loss, with addresses of both IP versions.
- `lossy.LossyLink`: a link that is slow and loses packets. It needs no netem: it has two TUN devices and a
  relay.
- `counters.Counters`: counts the traffic of a link, with nftables.
- `rules.rules`: sends the connections of a namespace to a gateway, with tools/deploy/transparent.sh.
"""

from tools.netns.namespace import Namespace, missing, veth

__all__ = ["Namespace", "missing", "veth"]
