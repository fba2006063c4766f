"""A small base Llama and two LoRA adapters to try Tenora with, trained on this machine the first time."""
