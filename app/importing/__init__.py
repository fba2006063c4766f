"""Adapters from elsewhere: where from, and fetching them within bounds."""
