"""One client and its broker, sans-IO: bytes and time come in, bytes and events go out."""
