"""Network namespaces that a test makes for itself and that vanish with it, and links between them.

- `Namespace`: a network of its own; code in `inside()`, and what it starts, lives there.
- `veth`: a link without loss, with addresses of both IP versions.
- `lossy.Link`: a link that is slow and loses packets, without netem: two TUN devices and a relay.
- `counters.Counters`: what crosses a link, counted by nftables.
- `rules.rules`: connections of a namespace are brought to a gateway, as tools/deploy/transparent.sh does it.
"""

from tools.netns.namespace import Namespace, missing, veth

__all__ = ["Namespace", "missing", "veth"]
