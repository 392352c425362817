"""``fetchgate replay measure``: one row for each exchange, added up to a report.

- ``table``: the table of exchanges, column by column.
- ``rows``: the exchanges of a connection in, its rows of the table out, through ``replay.simulate``.
- ``digest``: what rows can't say of a connection: bytes by topic, bytes over time, sessions.
- ``keys``, ``spread``: with --cooperative, records by the hashes of their keys, and how they would spread.
- ``sums``, ``report``, ``modelled``: the report object, made of the table's sums.
- ``strip_records``: leaves out the contents of records before Spark moves segments between its workers.
- ``spark``: runs all of this on Spark. No other folder here imports pyspark.
- ``command``: the command line.

All but ``command`` and ``spark`` is sans-IO.
"""
