"""Base model configurations in the format of transformers."""

from typing import Any

#: A tiny model with a vocabulary that needs padding and fewer key-value heads than heads.
TOY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
}

#: Llama 3 8B.
LARGE: dict[str, Any] = TOY | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
