"""Runs three brokers, a gateway and nine clients behind it, and makes every part fail.

    python -m tools.soak --minutes 60
    python -m tools.soak --minutes 4 --seed 7

- `records`: the produced records by topic, partition and offset, with timestamp, key, value and headers; the
  records that a consumer received, and the differences.
- `producers`: three producers (librdkafka, aiokafka, kafka-python) that produce through the gateway.
- `consumers`: six consumers behind the gateway, and the same clients connected directly to the brokers.
- `network`: the network between gateway and brokers: two namespaces with a link for each broker, or a relay.
- `gateways`: the gateway, and the gateways that replace it.
- `disturbances`: the failures of brokers, topics, network and gateway.
- `broker_sessions`: the number of fetch sessions of a broker, by JMX.
- `chaos`: the complete run, and its result.

A run fails if a record was lost, changed, invented or produced twice. It fails if a consumer behind the
gateway received records again without a reason, and the same client without the gateway did not. At the end,
it fails if a broker has more sessions than those of its followers. It also fails if the gateway kept
descriptors or memory, or logged a defect of its own.
"""
