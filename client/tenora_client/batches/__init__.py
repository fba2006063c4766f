"""Run a batch from a file: read inputs, write outputs, remember an unfinished run."""
