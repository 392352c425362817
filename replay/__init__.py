"""Captures: what they hold, what sessions would have saved, and driving them again.

From the inside out; sans-IO modules open no socket and no file and ask no clock.

- **capture**: files become columns of packets (``sources``, ``records``, ``blocks``, ``packets``), these runs
  of TCP segments (``segments``), these the exchanges of each connection (``reassembly``, ``framing``,
  ``pairing``, ``exchanges``). What can't be read is counted, never guessed.
- **outcome, broker, policies, savings** (sans-IO): each captured fetch goes through the gateway's own core,
  ``proxy.core.connection``; a broker that answers as the captured responses say stands behind it.
- **table, rows, digest**: one row an exchange; what can only be told of a whole connection.
- **spark**: the only imports of pyspark. One job: captures, exchanges, one grouped query.
- **slots, totals, tallies, modelled**: the report object; **report**: its four forms, pure functions.
- **drive**: captured requests played against a live gateway or broker.
- **inspecting, measuring, drive.command, cli**: the command line; only the command that is run is imported.

proxy knows nothing of this package: the command line finds it by its entry point.
"""
