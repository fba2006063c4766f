"""Shapes of a base model, as far as they determine the memory that serving it takes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adapters.errors import UnsupportedBase
from adapters.geometry import ATTENTION_MODULES, MLP_MODULES, BaseGeometry, read_geometry

#: Bytes per value of the engine's compute dtypes.
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}

#: Default of LlamaConfig.max_position_embeddings.
_CONTEXT = 2048
#: RoPE types that scale the context by a factor. For all others, max_position_embeddings is the scaled length.
_SCALES_CONTEXT = frozenset({"linear", "dynamic"})
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
#: vLLM pads the vocabulary to a multiple of this (DEFAULT_VOCAB_PADDING_SIZE in vocab_parallel_embedding.py).
_VOCAB_PADDING = 64


@dataclass(frozen=True, slots=True)
class Stored:
    """One stored tensor of the base.

    Attributes:
        shape: dimensions; empty for a scalar.
        dtype: name in safetensors, e.g. ``BF16``.
        bytes: size in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True, slots=True)
class PlannedBase:
    """Shapes of a base model.

    Attributes:
        heads, kv_heads: number of query heads, and of key and value heads, in a layer.
        context: longest sequence that the base was trained for, in tokens.
        tied: True if the head shares the embedding's matrix.
        tensors: tensors of the weight files; without files, those of a Llama with this config.
    """

    geometry: BaseGeometry
    heads: int
    kv_heads: int
    context: int
    tied: bool
    tensors: tuple[Stored, ...]

    @property
    def item_bytes(self) -> int:
        """Bytes per value in the compute dtype: weights that are not quantized, slots and KV cache."""
        return DTYPE_BYTES[self.geometry.dtype]


def context_length(config: Mapping[str, Any]) -> int:
    """Return the longest sequence of a Llama with this ``config.json``, as vLLM derives it.

    Raises:
        adapters.errors.UnsupportedBase: the length or its factor is not a number.
    """
    length = config.get("max_position_embeddings")
    length = _CONTEXT if length is None else length
    if type(length) is not int or length < 1:
        raise UnsupportedBase("max_position_embeddings", length, "a positive integer")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor") or 1
    if not isinstance(factor, int | float):
        raise UnsupportedBase("rope_parameters.factor", factor, "a number")
    return int(length * factor) if kind in _SCALES_CONTEXT else length


def plan_base(config: Mapping[str, Any], *, engine_dtype: str = "auto", stored: tuple[Stored, ...] = ()) -> PlannedBase:
    """Read a base from its ``config.json`` and, if given, the headers of its weight files.

    Raises:
        UnsupportedBase: the base is not a Llama, or a field is missing or invalid.
    """
    geometry = read_geometry(config, engine_dtype=engine_dtype)
    heads = config["num_attention_heads"]
    tied = _flag(config, "tie_word_embeddings")
    biases = {module: _flag(config, "attention_bias") for module in ATTENTION_MODULES}
    biases |= {module: _flag(config, "mlp_bias") for module in MLP_MODULES}
    return PlannedBase(
        geometry=geometry,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        context=context_length(config),
        tied=tied,
        tensors=stored or tuple(_llama(geometry, biases, tied=tied)),
    )


def check_split(base: PlannedBase, devices: int) -> None:
    """Check that vLLM can split the base over ``devices`` devices (models/llama.py: LlamaAttention).

    Raises:
        UnsupportedBase: a dimension is not divisible.
    """
    sizes = {
        "num_attention_heads": base.heads,
        "num_key_value_heads": base.kv_heads,
        "intermediate_size": base.geometry.dims["gate_proj"][1],
        "vocab_size": _padded(base.geometry.vocab),
    }
    for field, number in sizes.items():
        if number % devices and not (field == "num_key_value_heads" and devices % number == 0):
            raise UnsupportedBase(field, number, f"a multiple of the tensor parallel size ({devices})")


def weight_bytes(base: PlannedBase, tensor_parallel_size: int = 1) -> int:
    """Return the bytes of the base's parameters on one device. Exact for bases that are not quantized.

    - Floats are cast to the engine's dtype. Other tensors (quantized weights) stay as they are stored.
    - The vocabulary is padded to a multiple of 64.
    - A head that is tied to the embedding takes nothing.
    - Several devices split each matrix. Norms are replicated, and so is a bias that is added after the partial results
      are summed (vLLM 0.32, model_executor/layers/{linear,vocab_parallel_embedding}.py).
    """
    return sum(_loaded_bytes(base, tensor, tensor_parallel_size) for tensor in base.tensors)


def _loaded_bytes(base: PlannedBase, tensor: Stored, devices: int) -> int:
    if base.tied and tensor.name == _HEAD:
        return 0
    size = tensor.bytes
    if tensor.dtype in _FLOATS:
        size = base.item_bytes
        for dimension in tensor.shape:
            size *= dimension
    if tensor.name in (_EMBEDDING, _HEAD):
        return size // tensor.shape[0] * _padded(tensor.shape[0]) // devices
    module, _, kind = tensor.name.removeprefix("model.").rpartition(".")
    if module.endswith("norm") or (kind == "bias" and module.endswith(("o_proj", "down_proj"))):
        return size
    if module.endswith(("k_proj", "v_proj")):
        return size * local_kv_heads(base, devices) // base.kv_heads
    return size // devices


def local_kv_heads(base: PlannedBase, devices: int) -> int:
    """Return the key and value heads per device; if there are more devices than heads, heads are replicated."""
    return max(1, base.kv_heads // devices)


def _padded(vocab: int) -> int:
    return -(-vocab // _VOCAB_PADDING) * _VOCAB_PADDING


def _llama(geometry: BaseGeometry, biases: Mapping[str, bool], *, tied: bool) -> Iterator[Stored]:
    """Yield the tensors that transformers' LlamaForCausalLM saves."""

    def stored(name: str, *shape: int) -> Stored:
        return Stored(name, shape, "F32", 0)

    vocabulary = (geometry.vocab, geometry.hidden)
    yield stored(_EMBEDDING, *vocabulary)
    for layer in range(geometry.layers):
        prefix = f"model.layers.{layer}"
        for module, (inputs, outputs) in geometry.dims.items():
            block = "self_attn" if module in ATTENTION_MODULES else "mlp"
            yield stored(f"{prefix}.{block}.{module}.weight", outputs, inputs)
            if biases[module]:
                yield stored(f"{prefix}.{block}.{module}.bias", outputs)
        yield stored(f"{prefix}.input_layernorm.weight", geometry.hidden)
        yield stored(f"{prefix}.post_attention_layernorm.weight", geometry.hidden)
    yield stored("model.norm.weight", geometry.hidden)
    if not tied:
        yield stored(_HEAD, *vocabulary)


def _flag(config: Mapping[str, Any], field: str) -> bool:
    value = config.get(field, False)
    if type(value) is not bool:
        raise UnsupportedBase(field, value, "true or false")
    return value
