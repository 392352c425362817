"""Decrypts TLS connections whose secrets are known: turns bytes with gaps into application data with gaps.

Sans-IO.

- ``keylog``: the secrets, as clients and servers log them (SSLKEYLOGFILE).
- ``hello``: reads ClientHello and ServerHello.
- ``keys``: ciphers, and the keys that are derived from secrets. Only this module needs ``cryptography``.
- ``direction``: the records of one direction in order, with the gaps between them.
- ``conversation``: both directions of a connection, from its ClientHello on.

TLS 1.2 and 1.3 are read, with AES-GCM and ChaCha20-Poly1305. A record can be decrypted with one sequence
number only, so its place is certain. Renegotiation (TLS 1.2) and early data (TLS 1.3, 0-RTT) are not read. No
Kafka client uses them.
"""
