"""The client half of Kafka fetch sessions (KIP-227), toward the broker. Names are those of Kafka."""
