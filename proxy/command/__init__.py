"""What a person types and reads: commands, options, messages and exit codes."""
