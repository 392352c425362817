"""The sockets: links, listeners, TLS, and the gateway's own requests to a cluster."""
