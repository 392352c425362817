"""The sockets: links, listeners, TLS, and the questions that the gateway itself asks a cluster."""
