"""Captures as a table for your own queries in SQL: ``spark.read.format("kafka-pcap").load(path)``.

- ``columns`` (sans-IO): the table's columns, and the rows of exchanges.
- ``kafka_pcap``: the data source. It imports pyspark.
"""
