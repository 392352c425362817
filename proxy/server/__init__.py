"""The processes of a gateway: start, serve, hand clients to workers, reload, drain, stop."""
