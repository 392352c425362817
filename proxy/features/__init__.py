"""Options that are more than a value. Each is a folder here that can be deleted: see `declared`."""
