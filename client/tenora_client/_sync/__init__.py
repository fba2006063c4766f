# Generated from _async/__init__.py by `make client-code`. Change that file instead.
"""Synchronous client. :mod:`tenora_client._sync` is generated from this package."""
