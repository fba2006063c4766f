"""Versions that go: out of service, out of every engine and disk, out of the store."""
