"""Client of a Tenora server: a typed library and the ``tenora`` command."""

__version__ = "0.3.0.dev0"
