"""fetchgate's gateway: clients send full fetches, brokers get incremental fetch sessions.

The folders are listed from the lowest to the highest. A folder imports only lower ones. *Sans-IO* folders
open no socket and no file, and read no clock. They get bytes, time and ids as arguments, and return bytes and
events.

- **protocol** (sans-IO): the Kafka protocol. Only the parts of a frame that are rewritten are decoded.
- **session** (sans-IO): fetch sessions (KIP-227). The *handler* owns a session: its state, id and epoch, and
  the *table* of its partitions, with one row for each. A *decision* says how to send a fetch.
- **text**: declarations of options, values as people write them, and texts of messages.
- **capture**: the bytes of both sides as pcap files, with or without record contents.
- **core** (sans-IO): one client and its broker. A *connection* cuts bytes into frames. It decides how to send
  each fetch, and makes the client's response. It reports rare *events*, and counts each fetch in a *tally*.
- **prometheus**: metrics, and their text format.
- **features**: options that are more than a value. Each is a folder that can be deleted.
- **command**: the command line, and the options of the gateway.
- **net**: the sockets. A *link* is a client's socket, its broker's socket and the core between them.
- **telemetry**: the gateway's reports: status, totals, history, logs, metrics, state, admin endpoint.
- **server**: the process that accepts and serves clients.
- **dashboard**: ``fetchgate top``, which draws ``/state`` at intervals.

If the gateway is not sure about something, it forwards a connection's bytes unchanged.
"""
