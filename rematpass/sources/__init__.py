"""Models for the command line: from a Python object or a configuration, without weights."""
