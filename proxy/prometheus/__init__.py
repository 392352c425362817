"""Metrics for Prometheus: how one is declared, and the text format."""
