"""The connection of one client and its broker. Sans-IO: bytes and time go in, bytes and events come out."""
