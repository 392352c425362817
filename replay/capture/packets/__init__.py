"""From records to segments of TCP, in columns. Sans-IO."""
