"""Turns TCP segments into Kafka exchanges. Sans-IO."""
