"""Reports: pure functions of the report object."""
