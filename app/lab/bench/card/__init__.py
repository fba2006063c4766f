"""Proof of a card: kernels, parity, LoRA overhead, cold loads, a quantised base. See deploy/gpu/check.sh."""
