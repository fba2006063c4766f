"""Importing of adapters from other sources: names of sources, and bounded fetching."""
