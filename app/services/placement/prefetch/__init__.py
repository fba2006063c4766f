"""Prefetching: stage versions that traffic predicts, and the working set of the last run."""
