"""fetchgate's gateway: full fetches in, incremental fetch sessions out.

From the lowest layer to the highest; a folder only imports lower ones. *Sans-IO* folders open no socket and
no file and read no clock: bytes, time and ids come in as arguments, bytes and events go out.

- **protocol** (sans-IO): the Kafka wire. Views over received frames for the parts to rewrite; nothing else is
  decoded.
- **session** (sans-IO): KIP-227. The *handler* owns a session: its state, id and epoch, and the *table*,
  which has the session's partitions in columns, a row a partition. A *decision* is how to send a fetch.
- **core** (sans-IO): one client and its broker. A *connection* cuts bytes into frames; its *fetches* are
  decided, sent and completed. It reports *events*, which are rare, and a *tally*, to which every fetch adds.
- **cooperative** (sans-IO): with ``--cooperative``, a stage before the core for members of a group that share
  a partition. Each gets the records of its own keys, and commits for these.
- **capture**: both sides as pcap, with or without record contents.
- **net**: the sockets. A *link* is a client's socket, its broker's socket and the core between them.
- **telemetry**: the gateway's reports: status, totals, history, logs, metrics, state, admin endpoint.
- **server**: the processes. A single one serves clients, or a supervisor hands clients to workers.
- **dashboard**: ``fetchgate top``, a pure view of ``/state`` and the loop that updates it.

When in doubt, a connection is a wire.
"""
