"""Members of cooperative groups that are killed, stopped and replaced, and a gateway that is killed.

    python -m tools.soak.groups --kills 1000
    python -m tools.soak.groups --kills 30 --groups 3 --seed 7

- `member`: one member: a program of its own that writes a line for each record before it commits.
- `history`: what members did, read from their lines.
- `judge`: what was lost, came twice, out of order, or to a member that was not the owner of its key.
- `chaos`: brokers, gateway, producer, members, and what is done to them.
- `mixed`: the same with members of seven libraries, through the gateway or direct; `seen` judges it by what
  members processed and what the log holds alone.

Several groups are disturbed side by side, each with its own kills; all of them count together. A run fails
if a record was lost; if a key went to two members in turn, or its records came out of order; if a record came
twice that had been committed, or that a member had left behind which was neither killed, nor stopped, nor cut
off by a gateway that was killed, and could commit; if a member that was stopped until its session was over
got more than what it had in hand; or if the gateway logged a defect of its own.
"""
