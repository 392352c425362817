"""Asks other brokers for a part of a response, on the same client's connections there. Sans-IO."""
