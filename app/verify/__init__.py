"""Verification of a running engine against transformers and PEFT."""
