"""Demo: a small base Llama and two LoRA adapters, trained on this machine at the first start."""
