"""Spark: the only folder of ``measure`` that imports pyspark.

- ``session``: starts and stops Spark.
- ``java``: the Java runtime that Spark runs on.
- ``jobs``: make the table from captures or from another table, and collect what the report shows.
- ``stored``: writes tables to files, and reads them.
- ``run``: runs a measurement, with a progress bar.
"""
