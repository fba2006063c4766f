"""Prompt construction: defaults of a version, prompt formats, and sandboxed chat templates."""
