"""The ``tenora`` command."""
