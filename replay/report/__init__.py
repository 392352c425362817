"""The report object, and its output formats: functions that open no file and no connection. Sans-IO."""
