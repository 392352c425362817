"""The code that uses sockets: links, listeners, TLS, name resolution, and bootstrap requests."""
