# %% [markdown]
# # Questions about captured Kafka traffic, in SQL
#
# A notebook: Jupyter opens it with jupytext, and `python docs/users/questions.py` runs it.
# It needs fetchgate with its extra `[replay]`, and Java. docs/reference/columns.md describes the columns.

# %%
import os
import sys

from pyspark.sql import SparkSession

from replay.source.kafka_pcap import KafkaPcap

# Spark's workers would run the python3 of PATH, which may not have fetchgate.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

CAPTURES = "captures"

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(KafkaPcap)

# %% [markdown]
# Each question would read the captures again. `cache` keeps the rows.

# %%
exchanges = spark.read.format("kafka-pcap").load(CAPTURES).cache()
exchanges.createOrReplaceTempView("exchanges")

# %% [markdown]
# ## Which clients send and get the most, with which API?

# %%
most_bytes = spark.sql("""
    SELECT client_id, api, count(*) AS requests, sum(request_bytes) AS sent, sum(response_bytes) AS received
    FROM exchanges
    WHERE api IS NOT NULL
    GROUP BY ALL
    ORDER BY sent + received DESC
""")
most_bytes.show(truncate=False)

# %% [markdown]
# ## How long are the lists of partitions in fetches?
#
# A session leaves out the entries that do not change, in requests and in responses.

# %%
listed = spark.sql("""
    SELECT client_id, software, version, count(*) AS fetches,
           max(partitions) AS most_partitions, round(avg(request_bytes)) AS bytes_a_request
    FROM exchanges
    WHERE api = 'Fetch' AND partitions IS NOT NULL
    GROUP BY ALL
    ORDER BY fetches * bytes_a_request DESC
""")
listed.show(truncate=False)

# %% [markdown]
# ## What fails?

# %%
failed = spark.sql("""
    SELECT api, error, count(*) AS responses, count(DISTINCT client) AS clients,
           min(time) AS first, max(time) AS last
    FROM exchanges
    WHERE error IS NOT NULL
    GROUP BY ALL
    ORDER BY responses DESC
""")
failed.show(truncate=False)

# %% [markdown]
# ## How long do brokers take?
#
# Without fetches, which wait for records, and JoinGroup and SyncGroup, which wait for other members.

# %%
slowest = spark.sql("""
    SELECT broker, api, count(*) AS responses,
           round(1000 * percentile(seconds, 0.5), 2) AS median_ms, round(1000 * max(seconds), 2) AS longest_ms
    FROM exchanges
    WHERE seconds IS NOT NULL AND api NOT IN ('Fetch', 'JoinGroup', 'SyncGroup')
    GROUP BY ALL
    ORDER BY longest_ms DESC
""")
slowest.show(truncate=False)

# %% [markdown]
# ## In which ten seconds does most of the traffic come?

# %%
busiest = spark.sql("""
    SELECT window(time, '10 seconds').start AS since,
           count(*) AS requests, count(DISTINCT connection) AS connections,
           sum(coalesce(request_bytes, 0) + coalesce(response_bytes, 0)) AS bytes
    FROM exchanges
    GROUP BY ALL
    ORDER BY bytes DESC
""")
busiest.show(truncate=False)
