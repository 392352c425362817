"""Captures: what is in them, what fetch sessions would have saved, and replaying them.

Each folder has one task. A folder imports only from folders above it in this list. Sans-IO modules open no
socket and no file, and ask no clock.

- **protocol** (sans-IO): what replay reads of Kafka's protocol, and the gateway does not. The errors of every
  API are an example.
- **capture**: files in, Kafka exchanges out, in three steps. ``capture/files`` finds the packets in pcap and
  pcapng files. ``capture/packets`` (sans-IO, but for ``segments.read``) makes TCP segments of them.
  ``capture/kafka`` (sans-IO) makes requests and responses of these. Whatever can't be read is counted, never
  guessed.
- **simulate** (sans-IO): sends each captured fetch through the gateway's own core,
  ``proxy.core.connection``. A simulated broker is behind the core. Its responses have the contents of the
  captured ones.
- **report** (sans-IO, but for the templates of the page): the report object, and its forms: text for a
  terminal, HTML, CSV. Tables are described once for all three.
- **measure**: ``fetchgate replay measure``. It writes one row for each exchange, adds the rows up, and makes
  the report object of the sums. Its modules are sans-IO, except ``command``, ``here`` and ``measure/spark``.
  Only ``measure/spark`` and ``source`` import pyspark.
- **source**: the data source ``kafka-pcap`` of Spark: exchanges as a table for questions in SQL.
- **inspect**: ``fetchgate replay inspect``. It counts what is in captures, without Spark.
- **drive**: ``fetchgate replay drive``. It sends captured requests to a running gateway or broker.
- **cli**: the command line. It imports a command only when that command is run.

`replay` imports the sans-IO half of `proxy`. `proxy` never imports `replay`: the command line finds it by its
entry point.
"""
