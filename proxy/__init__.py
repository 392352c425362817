"""fetchgate's gateway: full fetches in, incremental fetch sessions out.

How it is put together, from the inside out. *Sans-IO* modules open no socket and no file and ask no clock:
bytes, time and ids come in as arguments, bytes and events go out.

- **protocol** (sans-IO): the Kafka wire. Views over received frames for what is rewritten, nothing decoded
  that is not; it imports nothing else of this package.
- **session** (sans-IO): KIP-227's ``FetchSessionHandler``, and the *partition table*, which keeps what a
  session holds in columns, a row a partition. A *rotation* is the short way for a list of one topic that only
  turned.
- **connection** (sans-IO): one client and its broker. Tells frames apart; its ``answers`` leave in request
  order, its ``fetches`` decide what goes through the session. It reports *events*, which are rare, and a
  *tally*, to which every fetch adds.
- **routing** (sans-IO): which broker is reached at which port, and what addresses clients are told.
- **budget** (sans-IO): which brokers are not read while too many bytes of answers are held.
- **measured, books, recent** (sans-IO): what is measured, what is counted by broker, what happened of late.
- **capturing, cutting** (sans-IO): what passes, as pcap records, and what may be left out of them.
- **server, transports, sockets, listeners, binding, transparent, tls, bootstrap, captures, admin, state,
  metrics, logs, config, reloading, running, cli**: the shell; the only modules that touch sockets, clocks and
  files.
- **dashboard**: ``fetchgate top``: a pure view of ``/state``, and the loop that keeps it live.

Imports go one way: protocol <- session <- connection <- server <- cli. When in doubt, a connection is a wire.
"""
