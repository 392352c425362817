"""The cost and the savings of fetchgate, measured beside runs without it: `python -m tools.bench`.

Each part runs alone with `--only NAME`. It compares direct runs, a proxy that only forwards (`floor`),
haproxy, the Java consumer's own sessions, and the gateway. Their windows alternate, or run at the same time.
Ratios are those of one round. Ratios and bytes are similar on other machines; megabytes a second and
milliseconds are not.

- `micro`: one exchange inside the gateway, request and response, without sockets; also with cold caches.
- `bytes`: fetch bytes on the broker's side with one busy partition of many and with all of them active.
- `law6`: the worst workloads; the broker's side must never carry more bytes than the client's.
- `bulk`: reading a topic from its start; CPU seconds of the proxies per GB, throughput.
- `tls`: the same with TLS to the broker, compared with haproxy.
- `latency`: from produce to consume at two rates, both through the proxy; the proxy's CPU.
- `connections`: CPU of the proxies while 500 connections fetch one partition each.
- `idle`: CPU of proxy and broker while one partition of 1,000 is busy.
- `memory`: resident bytes at start, after bulk, by connection, by partition, over time.
- `operations`: time from start to ready, memory when idle, size of the installed packages.
- `drain`: SIGTERM while many connections are busy.
- `moves`: leaders move under clients; the time from the error to the request at the new leader.
- `transparent`: redirect and tproxy compared with explicit mode; a stub of a broker in another namespace.
- `workers`: `--workers 2` compared with one worker, CPU of all processes, with the same stub.
- `replay`: `measure` and `inspect` of large generated captures, compared with tshark; cold starts; `drive`.

`stage` has the broker and the routes to it. `load` has the programs that produce and consume, each in its own
process. `windows` has the order of windows and compares them. `figures` has the printed tables, `floor` the
one that compares floor, haproxy and gateway, and `page` makes BENCHMARKS.md of them.
"""
