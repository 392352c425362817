"""The processes of a gateway: how they start, serve, assign clients to workers, reload, drain and stop."""
