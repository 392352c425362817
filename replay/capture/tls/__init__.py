"""Decrypts TLS connections whose secrets are known: turns bytes with gaps into application data with gaps.

Sans-IO. Only ``keys`` needs ``cryptography``. TLS 1.2 and 1.3 are read, with AES-GCM and ChaCha20-Poly1305. A
record can be decrypted with one sequence number only, so its place is certain. Renegotiation (TLS 1.2) and
early data (TLS 1.3, 0-RTT) are not read. No Kafka client uses them.
"""
