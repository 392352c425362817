"""``fetchgate replay measure``: makes rows of exchanges, and adds up the rows in a report.

- ``steps``: the steps from segments to rows of the table. ``here`` runs them in this process, ``spark`` on
  Spark.
- ``table``: the table of exchanges, column by column. ``typed`` makes columns from dataclasses.
- ``rows``: turns the exchanges of a connection into its rows of the table, through ``replay.simulate``.
- ``digest``, ``limits``, ``floors``: the summary of a connection: bytes by topic and over time, sessions,
  limits, and what floors of fetches would save.
- ``keys``, ``spread``: with --cooperative, count records by hashes of keys, and show how they would be
  distributed.
- ``collected``, ``sums``: add up rows.
- ``racks``, ``zone_log``, ``zones``, ``zone_places``, ``zone_moves``, ``zones_report``: which bytes go from
  one zone to another, and which records could be read in the client's zone: the racks that the user names,
  what a connection tells, the sums, the racks of brokers, the two ways of reading, and the report.
- ``report``, ``modelled``: make the report object from the sums.
- ``strip_records``: removes the contents of records before Spark moves segments between its workers.
- ``command``: the command line. ``memory``: how much memory it may use.

All modules except ``command``, ``here``, ``memory`` and ``spark`` are sans-IO. Only ``spark`` imports
pyspark.
"""
