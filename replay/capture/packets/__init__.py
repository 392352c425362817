"""Turns captured packets into TCP segments, in columns.

- ``links``: where the IP header begins in a packet, by link type.
- ``tunnels``: where the inner packet of a VXLAN, Geneve or GRE tunnel begins.
- ``ip``: where the TCP header begins, and the two IP addresses.
- ``tcp``: ports, sequence numbers, flags and payload.
- ``segments``: joins packets into runs, as Arrow record batches, with their payload or with references to it.
  Its ``read`` and ``read_references`` open the files of a share, and its ``with_payload`` follows references.
  Everything else here is sans-IO.
"""
