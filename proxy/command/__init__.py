"""The command line: its parsers, the options of all commands, completion and exit codes."""
