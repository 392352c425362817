"""Decrypts TLS connections whose secrets are known: bytes with gaps in, application data with gaps out.

Sans-IO.

- ``keylog``: the secrets, as clients and servers log them (SSLKEYLOGFILE).
- ``hello``: reads ClientHello and ServerHello.
- ``keys``: ciphers, and the keys that are derived from secrets. Only this module needs ``cryptography``.
- ``direction``: the records of one direction in order, with the gaps between them.
- ``conversation``: both directions of a connection, from its ClientHello on.

TLS 1.2 and 1.3 are read, with AES-GCM and ChaCha20-Poly1305. Each record proves its place, because it can be
decrypted with one sequence number only. Not read are renegotiation (TLS 1.2) and early data (TLS 1.3, 0-RTT),
which no client of Kafka uses.
"""
