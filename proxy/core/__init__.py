"""The connection of one client and its broker. Sans-IO: bytes and time go in, bytes and events come out.

A fetch there and back:

1. `Connection.receive_client` gets bytes of the client. `FastPath.request` first tries the plans of earlier
   exchanges. If one fits, it sends the fetch, and the steps up to 5 are left out.
2. `ClientSide.process` takes one request after the other, and shows it to each `Stage`. A fetch becomes a
   `ClientFetch` and an `InFlight`, the place of its response in the `ResponseQueue`.
3. `Fetches.request` parses it and lets each `Stage.on_fetch` change it. `Eligibility.against` says whether
   it may use the session with the broker. `FetchSessionHandler` makes the incremental fetch. The decision is
   a handler, the frame to send and its kind, or the reason to forward the fetch without the session.
4. The handler is put into the `InFlight`, inside the handlers of stages (`Handler.put`): a `ForwardedFetch`
   reads the response while it is forwarded, an `ExpandedFetch` keeps it until it is complete.
5. `ConnectionState.send` sends the frame. `Connection.drain_broker` gives it to the shell.
6. `Connection.receive_broker` gets the response. `FastPath.response` answers if a plan expects it. Otherwise
   `Connection` gives the bytes to the handler of the request: `Handler.feed`.
7. An `ExpandedFetch` lets the session judge them (`SentFetch._judge`), and makes the client's response from
   the table of partitions (`expand`, `Rotation.expand`). If the response can't be used,
   `SentFetch._arrange_resend` notes how to send the fetch again, and `Fetches.send_again` puts a new handler
   into the same `InFlight`.
8. `SideTally.add_fetches` and `SideTally.add_responses` count, called by handlers and plans alike. If the
   next exchange may be alike, `Plans` keeps a `ForwardPlan` or a `SessionPlan` until its generation ends.
9. `ResponseQueue.in_turn` keeps responses in the order of their requests. `Connection.drain_client` gives
   the bytes to the shell.
"""
