"""The processes of a gateway: they start, serve, assign clients to workers, reload, drain and stop."""
