"""The command line: one file a command, one output sink, one exit-code map. Starts at ``main.main``."""
