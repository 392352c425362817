"""fetchgate's gateway: full fetches in, incremental fetch sessions out.

How it is put together, from the inside out. *Sans-IO* modules open no socket and no file and ask no clock:
bytes, time and ids come in as arguments, bytes and events go out.

- **protocol** (sans-IO): the Kafka wire. Views over received frames for what is rewritten, nothing decoded
  that is not; it imports nothing else of this package.
- **session** (sans-IO): KIP-227's ``FetchSessionHandler``, and the *partition table*, which keeps what a
  session holds in columns, a row a partition. A *rotation* is the short way for a list of one topic that only
  turned.
- **connection** (sans-IO): one client and its broker. Tells frames apart; its ``responses`` leave in request
  order, its ``fetches`` decide what goes through the session. It reports *events*, which are rare, and a
  *tally*, to which every fetch adds.
- **routing** (sans-IO): which broker is reached at which port, and what addresses clients are told.
- **budget** (sans-IO): which brokers are not read while too many bytes of responses are held.
- **measured, books, recent** (sans-IO): what is measured, what is counted by broker, what happened of late.
- **capturing, cutting** (sans-IO): what passes, as pcap records, and what may be left out of them.
- **account** (sans-IO): what a gateway tells of itself, in plain data; health, metrics and state are read
  from that.
- **validity** (sans-IO): until when a certificate is valid.
- **front** binds what clients come to and follows the cluster; **serving** has the links (**transports**,
  **sockets**) and what they share. **server** is both in one process. With ``--workers``, **workers** keeps
  the front and hands each client to a **worker**, a process that serves; **hand** is such a process as seen
  from there, **channel** what is said between the two, **upkeep** what both sides have.
- **listeners, binding, looping, transparent, tls, bootstrap, reach, captures, admin, state, metrics, logs,
  config, reloading, checking, systemd, running, cli**: the rest of the shell, which alone touches sockets,
  clocks and files.
- **dashboard**: ``fetchgate top``: a pure view of ``/state``, and the loop that keeps it live.

Imports go one way: protocol <- session <- connection <- server <- cli. When in doubt, a connection is a wire.
"""
