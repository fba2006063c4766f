"""Bases in the shape of Llama 3.1 8B and Llama 3.2 1B with random bfloat16 weights. Needs no model hub.

``python -m app.lab.bench.big_base FOLDER`` creates the 8B in ``FOLDER/llama-8b-random`` and prints that path. The cost
of a step depends on shapes, not on values, so these bases stand in for the real ones in measurements of speed.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

NAME = "llama-8b-random"
SMALL_NAME = "llama-1b-random"
SEED = 0

_INDEX = "model.safetensors.index.json"
_STD = 0.02


def eight_b_config() -> LlamaConfig:
    """Shape of Llama 3.1 8B, from its ``config.json`` on the Hugging Face Hub."""
    return LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )


def eight_b_base(home: Path) -> Path:
    """Return the random 8B base in ``home``, created if missing. Needs 16 GB of disk and under 2 GB of memory."""
    return _base(home / NAME, eight_b_config)


def one_b_config() -> LlamaConfig:
    """Shape of Llama 3.2 1B with an untied head: 1.5 billion parameters."""
    config = eight_b_config()
    config.update({"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64})
    return config


def one_b_base(home: Path) -> Path:
    """Return the random 1B base in ``home``, created if missing. Needs 3 GB of disk."""
    return _base(home / SMALL_NAME, one_b_config)


def _base(folder: Path, config: Callable[[], LlamaConfig]) -> Path:
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        write_base(partial, config())
        partial.rename(folder)
    return folder


def write_base(folder: Path, config: LlamaConfig, *, seed: int = SEED) -> None:
    """Write a Llama with random bfloat16 weights and a byte-level tokenizer in transformers' format.

    Each layer is one file, so at most one layer is in memory.

    Args:
        folder: folder to create.
        seed: seed of the weights.
    """
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    total = config.num_hidden_layers + 1
    places: dict[str, str] = {}
    size = 0
    for number, shapes in enumerate(_shards(config), 1):
        file = f"model-{number:05}-of-{total:05}.safetensors"
        tensors = {name: _weights(shape, generator) for name, shape in shapes.items()}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
        size += sum(tensor.nbytes for tensor in tensors.values())
    (folder / _INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": places}))
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    _tokenizer(config.vocab_size).save_pretrained(folder)


def _shards(config: LlamaConfig) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield tensor names and shapes of each file: one file per layer, then one for the rest."""
    hidden, inner = config.hidden_size, config.intermediate_size
    head = hidden // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    for number in range(config.num_hidden_layers):
        yield {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    yield {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "lm_head.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }


def _weights(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if len(shape) == 1:  # norm weights
        return torch.ones(shape, dtype=torch.bfloat16)
    return torch.empty(shape, dtype=torch.bfloat16).normal_(0, _STD, generator=generator)


def _tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Build a byte-level tokenizer with a word for each other id.

    A random base generates any id, and each id needs a text.
    """
    special = ["<s>", "</s>"]
    first_words = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words = [*first_words, *(f"w{number}" for number in range(len(first_words), size))]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[1], clean_up_tokenization_spaces=False
    )


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m app.lab.bench.big_base FOLDER\n")
        return 2
    sys.stdout.write(f"{eight_b_base(Path(sys.argv[1]).resolve())}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
