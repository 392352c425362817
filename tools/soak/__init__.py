"""Three brokers, the gateway with two workers and nine clients behind it, while everything fails in turn.

    python -m tools.soak --minutes 60
    python -m tools.soak --minutes 4 --seed 7

- `records`: what was produced: every record by topic, partition and offset, with timestamp, key, value and
  headers; what a consumer received, and how that differs.
- `producers`: three producers (librdkafka, aiokafka, kafka-python) that produce through the gateway.
- `consumers`: six consumers behind the gateway, and the same clients direct to the brokers.
- `network`: what is between gateway and brokers: a link of two namespaces for each broker, or a relay.
- `gateways`: the gateway, and those that take over from it.
- `disturbances`: what is done to brokers, topics, network and gateway.
- `broker_sessions`: how many fetch sessions a broker has, by JMX.
- `chaos`: all of it together, and what came out.

A run fails if a record was lost, changed, invented or produced twice; if a consumer behind the gateway
received records again without a reason and the same client did not without the gateway; if a broker has more
sessions at the end than those of its followers; if the gateway kept descriptors or memory, or logged a
defect of its own.
"""
