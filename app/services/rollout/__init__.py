"""Gradual rollout: aliases, and canaries that roll back automatically when the candidate does worse."""
