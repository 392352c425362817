"""Captures: files, packets, TCP streams, Kafka frames and exchanges."""
