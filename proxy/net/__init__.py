"""The code with sockets: links, listeners, TLS, name resolution, and bootstrap requests."""
