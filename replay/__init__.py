"""Captures: what is in them, what fetch sessions would have saved, and replaying them.

Each folder has one task, and imports only from folders above it in this list. Sans-IO modules open no socket
and no file, and read no clock.

- **protocol** (sans-IO): the parts of Kafka's protocol that replay reads and the gateway does not.
- **capture**: turns capture files into Kafka exchanges.
- **simulate** (sans-IO): computes what each captured fetch would cost. Most are computed in runs, and one of
  1,000 of these is checked with the gateway's own core, ``proxy.core.connection``. All others go through it.
  Behind the core, a simulated broker answers with the contents of the captured responses.
- **report** (sans-IO, except the templates of the page): the report object, and its forms: text for a
  terminal, HTML, CSV. One description of each table serves all three forms.
- **measure**: ``fetchgate replay measure``. It adds up exchanges in groups (with ``--parquet``, it writes one
  row for each), and makes the report object from the sums. Its modules are sans-IO, except ``command``,
  ``here``, ``memory`` and ``measure/spark``. Only ``measure/spark`` and ``source`` import pyspark.
- **source**: the data source ``kafka-pcap`` of Spark: exchanges as a table for questions in SQL.
- **inspect**: ``fetchgate replay inspect``. It counts what is in captures, without Spark.
- **drive**: ``fetchgate replay drive``. It sends captured requests to a running gateway or broker.
- **cli**: the command line. It imports a command only when that command is run.

`replay` imports the sans-IO half of `proxy`, and what reads options and their files. `proxy` never imports
`replay`: its command line finds `replay` by an entry point of the package.
"""
