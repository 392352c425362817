"""Captured fetches through the gateway's core, in front of a broker made of captured responses. Sans-IO."""
