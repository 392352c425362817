"""Sends captured fetches through the gateway's core, with a simulated broker behind it. Sans-IO.

- ``captured_response``: one captured fetch response, parsed.
- ``captured_broker``: what the broker would have sent in a session, by what it sent without one.
- ``outcome``: one captured fetch, and what it costs with sessions.
- ``policies``: who gets a session: as the gateway decides, or every connection.
- ``engine``: the exchanges of one connection in, their outcomes out.
- ``session_cache``: the broker's limited number of sessions, as Kafka's FetchSessionCache manages them.
"""
