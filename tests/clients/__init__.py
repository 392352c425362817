"""Consumer programs, one for each Kafka client, and the runner that starts them and reads their output.

All programs take the same command line and print the same JSON lines. So a direct run and a run through the
gateway can be compared line by line:

    --bootstrap HOST:PORT --assign TOPIC:PARTITIONS[,...]           every partition, from its beginning
    --bootstrap HOST:PORT --subscribe TOPIC[,...] --group GROUP     a member of a consumer group
    --isolation read_uncommitted|read_committed

With ``CONSUME_USUAL`` in the environment, fetches wait for 500 ms at the broker, and metadata have the age
that is the default of most clients, 5 minutes. Without it, both are short.

A line is one JSON object with a ``kind``:

- ``start``: ``client`` and ``version``, once, before anything is read.
- ``record``: ``topic``, ``partition``, ``offset``, ``timestamp`` (ms), ``key`` (hex or null), ``value`` (null
  or ``LENGTH:SHA256``), ``headers`` (name and hex or null, in order).
- ``eof``: ``topic``, ``partition``, ``offset``: the client has read up to the end of the partition.
- ``assigned``, ``revoked``: ``partitions`` as ``[topic, partition]``.
- ``acknowledged``: ``topic``, ``partition``, ``offset``: the group has accepted a commit (only librdkafka,
  kafka-python and Java report this).
- ``watermarks``, ``position``, ``committed``: the responses to commands, see below.
- ``throttled``: ``broker``, ``seconds``: a quota was reached (only librdkafka reports this).
- ``error``: ``code`` and ``text`` that the client reported to its application.
- ``end``: the client was closed in good order.

The Python programs (`tests.clients.python`) read commands as JSON lines from standard input (seek, pause,
resume, watermarks, position, commit, stop); the other programs (``go``, ``java``, ``js``) stop at any line.
All programs run until then. A member of a group commits its positions every second.
"""
