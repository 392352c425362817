"""The parts of Kafka's protocol that replay reads and the gateway does not. Sans-IO.

- ``cluster``: the brokers of a cluster, their racks, and the replicas of partitions.
- ``errors``: the error codes in the responses of all APIs but Fetch, and their names.
- ``fetches``: the fields of a fetch response that replay counts.
- ``naming``: the clients, groups, topics and partitions that requests name.
- ``names``: the names of APIs.
"""
