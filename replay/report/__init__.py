"""The report object, and the forms in which it is shown. Pure functions: they open nothing and ask no clock."""
