"""From segments to Kafka exchanges. Sans-IO."""
