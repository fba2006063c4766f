"""Asynchronous client. :mod:`tenora_client._sync` is generated from this package."""
