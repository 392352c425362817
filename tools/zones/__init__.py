"""Clients before three brokers in three racks while brokers fail, with and without the gateway's help.

    python -m tools.zones
    python -m tools.zones --releases 4.3.0,3.9.1 --faults killed,stopped --clients java,sarama

All clients read the same topic side by side, through one gateway in the rack of broker 2. A producer writes
numbered records at a low rate, with acks=all. Each fault has its own run, with new clients and a new gateway.
Each run is made once for each mode of the gateway: `control` counts zones and changes no byte, and `named`
has ``--rack-clients`` for all clients.

- `brokers`: three brokers in three racks, and the faults.
- `replication`: relays between the brokers, which can hold back what one follower copies.
- `written`: the producer, and which number each offset has.
- `readers`: the clients, and when each of their records came.
- `traffic`: the fetches of each client, from the gateway's own capture.
- `running`: one run.
- `outcome`: what is wrong with the records of a client, and its longest gap.
- `tables`: the outcomes as tables.

The exit code is 1 if a client lost a record, got one twice or out of order, or starved, and the same client
in the control did not.
"""
