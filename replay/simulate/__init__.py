"""Sends captured fetches through the gateway's core, with a simulated broker behind it. Sans-IO.

- ``captured_response``: one captured fetch response, parsed.
- ``captured_broker``: the responses of the broker in a session, computed from its responses without one.
- ``outcome``: one captured fetch, and its cost with sessions.
- ``policies``: decide who gets a session: as in the gateway, or every connection.
- ``engine``: the exchanges of one connection in, their outcomes out.
- ``session_cache``: the broker's limited number of sessions, as Kafka's FetchSessionCache manages them.
"""
