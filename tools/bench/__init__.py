"""Measures the cost and the savings of fetchgate, compared with runs without it: `python -m tools.bench`.

`--only NAME` runs a single part. A part compares some of these routes: direct, a proxy that only forwards
(`floor`), haproxy, the Java consumer's own sessions, and the gateway. Routes are measured in turn or at the
same time. Each ratio compares windows of the same round. Ratios and bytes are similar on other machines;
megabytes per second and milliseconds are not.

- `micro`: time for one request and its response inside the gateway, without sockets; also with cold caches.
- `sessions`: the sessions that the gateway gives to clients: time for one fetch, memory, evictions.
- `bytes`: fetch bytes on the broker's side, with one busy partition of many, and with all partitions busy.
- `law6`: workloads for which sessions save little; the gateway must never exchange more bytes with the broker
  than with the client.
- `bulk`: reading a topic from its start; CPU seconds of the proxies per GB, throughput.
- `tls`: like `bulk`, with TLS to the broker, compared with haproxy.
- `latency`: from produce to consume, at two rates; producer and consumer connect through the proxy; the
  proxy's CPU.
- `connections`: CPU of the proxies while 500 connections fetch one partition each.
- `idle`: CPU of proxy and broker while one partition of 1,000 is busy.
- `memory`: resident bytes of a sidecar, idle and with one client; by connection, by partition, over time.
- `others`: latency of one client while other clients of the same gateway misbehave.
- `sidecars`: cooperative groups with a gateway beside each member, and with one for all.
- `replay`: `measure` and `inspect` of large generated captures, compared with tshark; a cluster, many
  connections; cold starts.
- `zones`: the options of racks (docs/users/zones.md): bytes that cross zones, latency at a follower.
- `alternatives`: one consumer with other ways to fewer bytes (docs/users/decide.md).
- `setup`: what it takes to set fetchgate up.

`stage` has the broker and the routes to it. `load` has the programs that produce and consume, each in its own
process. `windows` orders and compares the windows. `figures` prints tables. `page` writes
BENCHMARKS.md.
"""
