"""Batches of requests: creation, validation of their lines, listing and cancellation."""
