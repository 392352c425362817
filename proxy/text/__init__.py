"""What a person types and reads: declarations and values of options, and texts of messages."""
