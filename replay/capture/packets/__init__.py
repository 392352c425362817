"""From captured packets to TCP segments, in columns.

- ``links``: where the IP header begins in a packet, by link type.
- ``tunnels``: where the packet in a VXLAN, Geneve or GRE tunnel begins.
- ``ip``: where the TCP header begins, between which addresses.
- ``tcp``: ports, sequence numbers, flags and payload.
- ``segments``: joins packets into runs of payload, as Arrow record batches. Its ``read`` goes through a share
  of files. Everything else here is sans-IO.
"""
