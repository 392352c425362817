"""fetchgate's gateway: full fetches in, incremental fetch sessions out.

From the ground up; a folder imports lower ones alone. *Sans-IO* folders open no socket and no file and ask no
clock: bytes, time and ids come in as arguments, bytes and events go out.

- **protocol** (sans-IO): the Kafka wire. Views over received frames for what is rewritten; nothing else is
  decoded.
- **session** (sans-IO): KIP-227. The *handler* owns a session: its state, id and epoch, and the *table*,
  which keeps what the session holds in columns, a row a partition. A *decision* says what becomes of a fetch.
- **core** (sans-IO): one client and its broker. A *connection* tells frames apart; its *fetches* are decided,
  carried out and completed. It reports *events*, which are rare, and a *tally*, to which every fetch adds.
- **cooperative** (sans-IO): with ``--cooperative``, a stage before the core for members of a group that share
  a partition. Each gets the records of its own keys, and commits for these.
- **capture**: both sides as pcap, with or without the contents of records.
- **net**: the sockets. A *link* is a client's socket, its broker's socket and the core between them.
- **telemetry**: what a gateway reports of itself: status, totals, history, logs, metrics, state, admin
  endpoint.
- **server**: the processes. One serves alone, or a supervisor hands clients to workers that serve.
- **dashboard**: ``fetchgate top``, a pure view of ``/state`` and the loop that keeps it live.

When in doubt, a connection is a wire.
"""
