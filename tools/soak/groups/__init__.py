"""Members of cooperative groups that are killed, stopped and replaced, and a gateway that is killed.

    python -m tools.soak.groups --kills 1000
    python -m tools.soak.groups --kills 30 --groups 3 --seed 7

- `member`: one member: a program of its own that writes a line for each record before it commits.
- `history`: the members' actions, read from their lines.
- `judge`: finds records that were lost, came twice, out of order, or to a member that did not own the key.
- `chaos`: brokers, gateway, producer, members, and their disturbances.
- `mixed`: the same with members of seven libraries, through the gateway or direct; `seen` judges it only by
  the records that members processed and the log.

Several groups are disturbed at the same time, each with its own kills; all of them count together. A run
fails in these cases:

- A record was lost.
- A key went to two members in turn, or its records came out of order.
- A record came twice after it had been committed.
- A record came twice although its first member could have committed it. That member was not killed, stopped,
  or cut off by a killed gateway.
- A member that was stopped until its session expired got more records than it already had.
- The gateway logged a defect of its own.
"""
