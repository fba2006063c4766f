"""Comparison of a running engine with transformers and PEFT."""
