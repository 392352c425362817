"""The report object, and the forms in which it is shown: pure functions that open nothing. Sans-IO."""
