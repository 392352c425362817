"""The parts of Kafka's protocol that replay reads and the gateway does not. Sans-IO.

- ``errors``: the error codes in the responses of every API, and their names.
- ``fetches``: the fields of a fetch response that replay counts.
- ``naming``: the groups, topics and partitions that requests name.
- ``names``: the names of APIs.
"""
