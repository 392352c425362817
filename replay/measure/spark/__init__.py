"""Spark: the only folder of ``measure`` that imports pyspark.

- ``session``: starts and stops Spark.
- ``java``: the Java runtime that Spark runs on.
- ``jobs``: from captures, or from a table, to the sums of the table.
- ``stored``: the table in files, to which runs add.
- ``run``: one measurement from its start to its end, with a progress bar.
"""
