"""Bringing versions towards the engine before they are asked for: what traffic predicts, and what was used before."""
