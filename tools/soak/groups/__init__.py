"""Runs cooperative groups while their members are killed, stopped and replaced, and gateways are killed.

    python -m tools.soak.groups --kills 1000
    python -m tools.soak.groups --kills 30 --groups 3 --seed 7
    python -m tools.soak.groups --kills 1000 --groups 2 --members 8 --gateways 3 --must-share

- `member`: one member: a program of its own that writes a line for each record before it commits.
- `history`: the members' actions, read from their lines.
- `judge`: finds records that were lost, received twice, received in the wrong order, or received by a member
  that did not own the key.
- `gateways`: the gateways before the broker, and their faults.
- `sharing`: tells how much was shared, from the records that members processed.
- `chaos`: producer, members, and their disturbances.
- `mixed`: a similar run with members of seven libraries, through gateways or direct.
- `seen`: judges a run of `mixed` from the log and from the records that members processed.

Several groups are disturbed at the same time, each with its own kills. `--kills` is the total of all groups.

With `--gateways`, the members of each group are spread over several gateways. Gateways are killed, cut off
from the broker for some seconds, every fifth time for a minute, and restarted one by one. The clocks of
all gateways are the same. A run goes on until each of these has happened. A group that shares nothing has
none of the faults below. So after the disturbances, each group must share its partitions before the run ends.
The end of the run tells how many records were processed while members shared their partition, and with
`--must-share` a run fails if a group shared too little.

A run fails in these cases:

- A record was lost.
- A key went to two members in turn, or its records were received in the wrong order.
- A record was received again after it had been committed.
- A record was received twice although its first member could have committed it: the member was not killed,
  not stopped, and its own gateway was neither down nor cut off.
- A member that was stopped or cut off until its session expired received further records.
- A gateway logged a defect of its own.
- A group does not share its partitions again after the last disturbance.
"""
