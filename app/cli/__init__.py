"""The ``tenora`` command."""

from app.cli.root import main

__all__ = ["main"]
