"""What fetchgate costs and saves, measured beside runs without it: `python -m tools.bench`.

Each part stands alone (`--only NAME`) and puts direct runs, a bare pass-through (`floor`), haproxy where it
is installed, the Java consumer's own sessions and the gateway beside each other, in windows that alternate or
run at the same time. Ratios and bytes hold from one machine to the next; megabytes a second and milliseconds
don't.

- `micro`: one unchanged fetch inside the gateway, request and answer, without sockets.
- `bytes`: fetch bytes on the broker's side with one busy partition of many and with all of them active.
- `law6`: workloads made to hurt; the broker's side must never carry more than the client's.
- `bulk`: a topic drained; CPU seconds of the proxies per GB, throughput.
- `tls`: the same with TLS toward the broker, beside haproxy's or a bare pass-through's.
- `latency`: from produce to consume at two rates, in windows that alternate.
- `idle`: CPU of gateway and broker while one partition of 1,000 is busy.
- `memory`: resident bytes at start, after drains, by connection, by partition, over time; many connections.
- `operations`: from start to ready, memory at rest, what pip installs for the gateway alone.
- `drain`: SIGTERM while many connections are busy.
- `transparent`: redirect and tproxy beside explicit mode, before one stub of a broker in another namespace.
- `workers`: `--workers 2` beside one, CPU of all processes, before the same stub.
- `replay`: `measure` and `inspect` of large made captures, beside tshark; cold starts; `drive` at a stub.

`stage` holds the broker and the routes to it, `load` the programs that produce and consume in processes of
their own, `figures` what is told at the end.
"""
