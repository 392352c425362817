"""Kafka fetch sessions (KIP-227), in Kafka's own words."""
