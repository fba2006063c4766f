"""Resumable uploads: sessions of verified parts, with an idempotent finish."""
