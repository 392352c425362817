"""The processes of a gateway: they start, serve, assign clients to workers, reload options, and stop."""
