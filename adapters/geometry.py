"""Shapes of a base model that a LoRA adapter must fit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adapters.errors import UnsupportedBase

ATTENTION_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_MODULES = ("gate_proj", "up_proj", "down_proj")
#: Linear layers of a Llama block that an adapter may change.
LINEAR_MODULES = ATTENTION_MODULES + MLP_MODULES
#: Layer that maps hidden states to logits. Adapters of it are served only if a setting allows it.
HEAD_MODULE = "lm_head"

_ARCHITECTURES = (["LlamaForCausalLM"], ["LLaMAForCausalLM"])
_DTYPES = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
    "float32": "float32",
    "float": "float32",
}
_MAX_DIMENSION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class BaseGeometry:
    """Dimensions and dtype that a base model fixes for every adapter on it.

    Attributes:
        layers: number of transformer blocks.
        hidden: width of the residual stream.
        vocab: number of tokens.
        dims: (inputs, outputs) by name, for each of :data:`LINEAR_MODULES`.
        dtype: dtype that the engine computes in: ``float16``, ``bfloat16`` or ``float32``.
        tied: whether the head shares the embedding's matrix.
    """

    layers: int
    hidden: int
    vocab: int
    dims: Mapping[str, tuple[int, int]]
    dtype: str
    tied: bool = False

    def dims_of(self, module: str) -> tuple[int, int]:
        """Return (inputs, outputs) of one of :data:`LINEAR_MODULES` or of the head."""
        return (self.hidden, self.vocab) if module == HEAD_MODULE else self.dims[module]

    def modules(self) -> Iterator[str]:
        """Yield the full name of every linear layer, the head last."""
        for layer in range(self.layers):
            for block, kinds in (("self_attn", ATTENTION_MODULES), ("mlp", MLP_MODULES)):
                yield from (f"model.layers.{layer}.{block}.{kind}" for kind in kinds)
        yield HEAD_MODULE


def read_geometry(config: Mapping[str, Any], *, engine_dtype: str = "auto") -> BaseGeometry:
    """Read the geometry from the base's ``config.json``, as transformers' LlamaConfig defines its fields.

    Under ``auto`` vLLM takes the config's dtype, with one exception. It replaces float32, or a missing dtype, by a
    16-bit dtype that depends on the device. Adapters are then checked against float16. It has the smallest range, so
    they fit either choice.

    Args:
        config: parsed ``config.json``.
        engine_dtype: vLLM's ``dtype`` argument.

    Raises:
        UnsupportedBase: the model is not a Llama, or a field is missing or invalid.
    """
    architectures = config.get("architectures")
    if architectures not in _ARCHITECTURES:
        raise UnsupportedBase("architectures", architectures, "LlamaForCausalLM alone")
    hidden = _dimension(config, "hidden_size")
    intermediate = _dimension(config, "intermediate_size")
    heads = _dimension(config, "num_attention_heads")
    kv_heads = _dimension(config, "num_key_value_heads", default=heads)
    head_dim = _dimension(config, "head_dim", default=_default_head_dim(hidden, heads))
    if heads % kv_heads:
        raise UnsupportedBase("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads ({heads})")
    query, key_value = heads * head_dim, kv_heads * head_dim
    return BaseGeometry(
        layers=_dimension(config, "num_hidden_layers"),
        hidden=hidden,
        vocab=_dimension(config, "vocab_size"),
        dims={
            "q_proj": (hidden, query),
            "k_proj": (hidden, key_value),
            "v_proj": (hidden, key_value),
            "o_proj": (query, hidden),
            "gate_proj": (hidden, intermediate),
            "up_proj": (hidden, intermediate),
            "down_proj": (intermediate, hidden),
        },
        dtype=_serving_dtype(config, engine_dtype),
        tied=config.get("tie_word_embeddings") is True,
    )


def _dimension(config: Mapping[str, Any], field: str, *, default: int | None = None) -> int:
    value = config.get(field)
    if value is None and default is not None:
        return default
    if type(value) is not int or not 1 <= value <= _MAX_DIMENSION:
        raise UnsupportedBase(field, value, "a positive integer")
    return value


def _default_head_dim(hidden: int, heads: int) -> int | None:
    return hidden // heads if hidden % heads == 0 else None


def _serving_dtype(config: Mapping[str, Any], engine_dtype: str) -> str:
    if engine_dtype != "auto":
        return _known_dtype("engine dtype", engine_dtype)
    # transformers 5 writes `dtype`, every release before it `torch_dtype`.
    field = "dtype" if config.get("dtype") is not None else "torch_dtype"
    dtype = _known_dtype(field, config.get(field) or "float32")
    return "float16" if dtype == "float32" else dtype


def _known_dtype(field: str, name: object) -> str:
    if not isinstance(name, str) or name not in _DTYPES:
        raise UnsupportedBase(field, name, ", ".join(_DTYPES))
    return _DTYPES[name]
