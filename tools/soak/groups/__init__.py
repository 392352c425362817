"""Runs cooperative groups while their members are killed, stopped and replaced, and the gateway is killed.

    python -m tools.soak.groups --kills 1000
    python -m tools.soak.groups --kills 30 --groups 3 --seed 7

- `member`: one member: a program of its own that writes a line for each record before it commits.
- `history`: the members' actions, read from their lines.
- `judge`: finds records that were lost, received twice, received in the wrong order, or received by a member
  that did not own the key.
- `chaos`: brokers, gateway, producer, members, and their disturbances.
- `mixed`: a similar run with members of seven libraries, through the gateway or direct.
- `seen`: judges a run of `mixed` from the log and from the records that members processed.

Several groups are disturbed at the same time, each with its own kills. `--kills` is the total of all groups.
A run fails in these cases:

- A record was lost.
- A key went to two members in turn, or its records were received in the wrong order.
- A record was received again after it had been committed.
- A record was received twice although its first member could have committed it: the member was not killed,
  not stopped, and not cut off by a killed gateway.
- A member that was stopped until its session expired received further records.
- The gateway logged a defect of its own.
"""
