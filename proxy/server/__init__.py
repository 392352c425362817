"""The process of a gateway: it starts, serves clients, reloads options, and stops."""
