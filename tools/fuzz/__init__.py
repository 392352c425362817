"""Fuzzers: they feed millions of broken inputs to every part that reads foreign bytes.

    python -m tools.fuzz                                  # all targets, each for a minute, one per processor
    python -m tools.fuzz client core --inputs 10000000    # this many inputs each
    python -m tools.fuzz pcap --seconds 600 --seed 7
    python -m tools.fuzz core --replay FILE               # one input, without anything else

With atheris (`pip install -e '.[fuzz]'`, Linux) new inputs are derived from those that reached new code.
Without it they are derived from seeds by a small mutator. Both feed the same targets.

- `target`: a target, and the findings: an exception that is not documented, more than 20 ms of CPU time for
  one input (a script of requests: 0.1 ms more for each byte, a repeated capture: 2 µs more), more memory
  than the target's bound.
- `connection`: targets `client`, `broker`, `core`, `sessions`: frames of either side, and both interleaved,
  through `proxy.core.connection.Connection`; with `sessions` clients have sessions with the gateway.
- `captures`: targets `reassembly`, `tls`, `packets`, `pcap`, `pcapng`: the input of `fetchgate replay`;
  `repeated`: captures of 128 KB, of few parts that are repeated, for CPU time that grows faster than a file.
- `admin`: target `admin`: the admin endpoint.
- `seeds`, `mutate`: the source of inputs. `guided` is the loop with atheris, `plain` the one without.
- `running`: one target from its first input to its findings. Each has a process of its own.
- `findings`: a finding is made small and becomes a file in tests/fuzz/regressions/TARGET, which
  `tests/fuzz/test_regressions.py` replays.
"""
