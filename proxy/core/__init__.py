"""The connection of one client and its broker. Sans-IO: bytes and time go in, bytes and events come out.

The shell that calls it is `net/link.py`. A fetch there and back:

1. `FastPath.request` gets the client's bytes first. If a request fits the plan of an earlier exchange, it is
   sent at once: its place in the `ResponseQueue` is an `InFlight` with the plan as its handler, and steps 2
   to 5 are left out. `Connection.receive_client` gets all other bytes, and `Framer` cuts them into frames. It
   keeps the beginning of a frame until the rest arrives.
2. `ClientSide._frame` shows each request to the stages (`Stage.on_frame`). If none has used it,
   `ClientSide.process` handles it. A fetch goes through `ClientSide._fetch` and `Stage.before_fetch`, and
   becomes a `ClientFetch` and an `InFlight`, the place of its response in the `ResponseQueue`.
3. `Fetches.request` parses it and lets each `Stage.on_fetch` change it. `Fetches._decide` makes the decision:
   `Eligibility.against` says whether the fetch may use the session with the broker, `FetchSessionHandler`
   makes the incremental fetch, and `Savings` says whether it saves bytes. The decision is a handler, the
   frame to send and its kind, or the reason to forward the fetch without the session.
4. The handler is put into the `InFlight`, inside the handlers of stages (`Handler.put`): a `ForwardedFetch`
   reads the response while it is forwarded, also of the full fetch that requests a session (from v7 on). An
   `ExpandedFetch` keeps it until it is complete.
5. `ConnectionState.send` queues the frame. `Connection.drain_broker` gives it to the shell.
6. `FastPath.join` and `FastPath.response` get the broker's bytes first, and answer if the plan of the request
   fits. `Connection.receive_broker` gets the other bytes. `Handler.begin` of a plan makes the real handler,
   and `Connection` gives this handler the bytes: `Handler.feed`.
7. Both handlers let the session judge the response if the fetch used or requested it (`SentFetch._judge`).
   The rules are the tables of `session/state.py`, `session/handler.py` applies them. An `ExpandedFetch` then
   makes the client's response from the table of partitions (`expand`, `Rotation.expand`), in the order of
   the client's fetch. If the response to a session's fetch can't be used, `SentFetch._arrange_resend` notes
   how to send the fetch again, and `Fetches.send_again` puts a new handler into the same `InFlight`.
8. `Fetches.request` and `SessionKeeper.send` count requests, `SentFetch` and its subclasses count responses.
   `FetchPlan.count` adds the exchanges of a plan later. `Plans` has a `ForwardPlan`, made when a fetch was
   sent, or a `SessionPlan`, made after a response. A plan is valid until `Plans.forget_fetch` or a reload.
9. `ResponseQueue.in_turn` keeps responses in the order of their requests. `Connection.drain_client` gives
   the bytes to the shell.
"""
