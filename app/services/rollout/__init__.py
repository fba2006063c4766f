"""A version that takes over step by step, and goes back by itself if it does worse."""
