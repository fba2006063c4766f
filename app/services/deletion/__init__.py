"""Removal of versions: from service, from every engine and disk, and from the store."""
