"""``fetchgate replay measure``: makes rows of exchanges, and adds up the rows in a report.

The calls without Spark: ``command`` calls `here.measure_here`; `steps.events` makes exchanges of segments,
`rows.groups` sends them through ``replay.simulate``, `collected.collect` adds up, `report.report` makes the
report.

- ``command``: the command line. ``work``: the input and the options. ``memory``: how much memory there is.
- ``steps``: the steps from segments to rows, run in this process by ``here``, and on Spark by ``spark``.
- ``table``: the table of exchanges, column by column. ``typed`` makes columns from dataclasses.
- ``rows``: turns the exchanges of a connection into its rows, or into ``groups`` of exchanges that
  differ only in what a report adds up.
- ``digest``, ``limits``, ``floors``, ``zone_log``: what the rows do not show of a connection.
- ``keys``, ``spread``: with --cooperative, count records by hashes of keys, and spread them over members.
- ``collected``, ``sums``, ``zones``: add up rows.
- ``report``, ``modelled``, ``net``: make the report object from the sums.
- ``racks``, ``zone_places``, ``zone_moves``, ``zones_report``: the zones in the report.
- ``strip_records``: removes the contents of records before Spark moves segments between its workers.

All modules except ``command``, ``here``, ``memory`` and ``spark`` are sans-IO. Only ``spark`` imports
pyspark.
"""
