"""``fetchgate replay measure``: one row an exchange, summed up to a report."""
