"""The demos of the Makefile: `python -m tools.demo`, `tools.demo.link`, `.cooperative` and `.zones`.

`frame` has what all of them do: steps, progress, interrupts, the broker, the result. `reading` has the
consumers of the first two. The modules named `report` are pure functions of records and counters.
"""

try:
    import confluent_kafka  # noqa: F401 - looked for here, so that every demo says the same if it is missing
    import rich  # noqa: F401 - like confluent_kafka
except ImportError as error:
    raise SystemExit(f"demo: {error}; run `make demo`, which installs what it needs") from None
