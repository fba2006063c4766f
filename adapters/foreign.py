"""Recognise files of other tools and models behind PEFT's file names, to explain the problem in one sentence."""

import re
from collections.abc import Mapping
from typing import Any

from adapters.errors import Reason
from adapters.strict_json import show

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_PEFT = "the adapter_config.json that PEFT's save_pretrained writes"
_PEFT_KEYS = frozenset({"peft_type", "r", "lora_alpha", "target_modules", "lora_dropout", "peft_version"})
_UPLOAD = "upload the folder that PEFT's `model.save_pretrained(FOLDER)` wrote"

_CLASS = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,80}", re.ASCII)
# transformers' module of an architecture, e.g. transformers.models.qwen2.modeling_qwen2.
_FAMILY = re.compile(r"transformers\.models\.([a-z0-9_]{1,40})(?:\..*)?", re.ASCII)
_TASK_CLASS = re.compile(r"\w*(?:For[A-Z]\w*|LMHeadModel)", re.ASCII)
_BASE_FAMILY, _BASE_CLASS = "llama", "LlamaForCausalLM"


def foreign_config(config: Mapping[str, Any]) -> Reason | None:
    """Return the reason against a config that is not a PEFT config at all; None if it may be one."""
    if not _PEFT_KEYS.isdisjoint(config):
        return None
    like, todo = _likeness(config)
    sentence = f"{CONFIG_FILE} is not a PEFT adapter config" + (f"; it looks like {like}" if like else "")
    return Reason("not_peft_config", CONFIG_FILE, like or "none of PEFT's keys", _PEFT, f"{sentence}: {todo}.")


def _likeness(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the likely origin of a config that is not PEFT's, and the advice for it."""
    if not {"lora_parameters", "fine_tune_type", "adapter_path"}.isdisjoint(config):
        return "MLX-LM's", "train the adapter with PEFT, as MLX-LM's names and shapes are its own"
    if isinstance(config.get("config"), Mapping) and not {"model_class", "hidden_size"}.isdisjoint(config):
        return "AdapterHub's", "train the adapter with PEFT"
    if not {"tokenizer_class", "added_tokens_decoder"}.isdisjoint(config):
        return "a tokenizer's config", _UPLOAD
    if not {"architectures", "model_type", "hidden_size"}.isdisjoint(config):
        named = config.get("architectures")
        first = named[0] if isinstance(named, list) and named else config.get("model_type")
        known = f" ({first})" if isinstance(first, str) and _CLASS.fullmatch(first) else ""
        return f"a model's own config.json{known}", _UPLOAD
    if not {"learning_rate", "per_device_train_batch_size", "global_step"}.isdisjoint(config):
        return "a trainer's settings", _UPLOAD
    return "", _UPLOAD


def other_architecture(config: Mapping[str, Any]) -> Reason | None:
    """Return the reason against an adapter whose ``auto_mapping`` names a model class of another architecture."""
    mapping = config.get("auto_mapping")
    found = mapping.get("base_model_class") if isinstance(mapping, Mapping) else None
    if not isinstance(mapping, Mapping) or not isinstance(found, str) or not _CLASS.fullmatch(found):
        return None
    if _is_llama(found, mapping.get("parent_library")):
        return None
    sentence = (
        f"The adapter was trained for {found}; this server's base is {_BASE_CLASS}: train it on that base, or upload "
        "it to a server of its own base."
    )
    return Reason("other_architecture", "auto_mapping.base_model_class", found, _BASE_CLASS, sentence)


def _is_llama(name: str, library: object) -> bool:
    """Return False only if the class certainly belongs to another architecture.

    Wrappers and user-defined classes prove nothing, so they pass.
    """
    family = _FAMILY.fullmatch(library) if isinstance(library, str) else None
    if family:
        return family[1] == _BASE_FAMILY
    lower = name.lower()
    if lower.startswith("peft") or not _TASK_CLASS.fullmatch(name):
        return True
    return _BASE_FAMILY in lower and not lower.startswith(("llama4", "mllama"))


_SAVE = "save the adapter again with `model.save_pretrained(FOLDER)`"
_LORA = r"\.lora_[AB]\."

#: Patterns of tensor names, each with the code and the sentence of its reason. The first match wins.
_NAMES: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern, re.ASCII), code, sentence)
    for pattern, code, sentence in (
        (
            r"(?:^|\.)unembed_tokens\.",
            "embedding_not_served",
            (
                "unembed_tokens is the head under another name, Tinker's: export with tinker_cookbook's "
                "weights.build_lora_adapter, which names it lm_head, or train with train_unembed=False."
            ),
        ),
        (
            r"(?:^|\.)(?:embed_tokens|lm_head)\.(?:modules_to_save\.|base_layer\.)?weight$",
            "embedding_not_served",
            (
                "The file holds whole embeddings, not only an adapter: save it again with "
                "`model.save_pretrained(FOLDER, save_embedding_layers=False)`; new tokens cannot be served."
            ),
        ),
        (
            rf"{_LORA}[A-Za-z0-9_]+\.weight$",
            "tensor_name",
            (
                "The tensor names hold the adapter's name, such as `lora_A.default.weight`, as in a raw state dict: "
                f"{_SAVE}, which leaves it out."
            ),
        ),
        (
            r"\.lora_[ab](?:\.weight)?$",
            "tensor_name",
            "The tensors have MLX-LM's names (lora_a, lora_b): train the adapter with PEFT.",
        ),
        (
            r"(?:^|\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.|^module\.",
            "tensor_name",
            "The tensor names hold a wrapper of the training loop (torch.compile, FSDP or DDP): unwrap the model with "
            "`accelerator.unwrap_model(model)`, then " + _SAVE + ".",
        ),
        (
            r"lora_magnitude_vector",
            "tensor_name",
            "The file holds the magnitudes of DoRA, which the engine cannot serve: train with use_dora=False.",
        ),
        (
            rf"{_LORA}bias$|\.bias$",
            "tensor_name",
            "The file holds biases, which the engine cannot serve: train with bias='none' and lora_bias=False.",
        ),
        (
            r"^lora_(?:unet|te)|^(?:unet|transformer|text_encoder)\.",
            "tensor_name",
            "The tensors are those of an adapter for images: this server serves adapters of a Llama.",
        ),
        (
            (
                r"\.(?:qkv_proj|gate_up_proj|c_attn|c_proj|c_fc|query_key_value|dense_4h_to_h|dense_h_to_4h|Wqkv|fc1|fc2|"
                r"out_proj|in_proj_qkv|experts)\."
            ),
            "tensor_name",
            (
                "The tensors change modules that a Llama does not have, so the adapter was trained on another "
                "architecture: train it on this server's base."
            ),
        ),
    )
)


def known_name(name: str) -> Reason | None:
    """Return the reason against a tensor whose name shows its origin; None if the name shows nothing."""
    for pattern, code, sentence in _NAMES:
        if pattern.search(name):
            return Reason(code, name, name, "base_model.model.model.layers.N....lora_A|lora_B.weight", sentence)
    return None


_EMPTY = (
    "The tensors are empty because the weights were not gathered before they were saved: with DeepSpeed ZeRO-3 set "
    "stage3_gather_16bit_weights_on_model_save to true and save the adapter again."
)


def empty_tensor(name: str, shape: object) -> Reason:
    """Return the reason against a tensor without values."""
    return Reason("empty_tensor", name, f"shape {show(shape)}", "a shape without 0", _EMPTY)


#: Leading bytes of files that users upload by mistake in place of weights.
_BEGINNINGS = (
    (b"version ", "a Git LFS pointer, not the weights: run `git lfs pull` in its repository and upload the file again"),
    (b"GGUF", "a GGUF file: upload the safetensors file that PEFT saved"),
    (b"<!DOCT", "a web page, not the weights: download the file itself and upload it again"),
    (b"<html", "a web page, not the weights: download the file itself and upload it again"),
    (b"\x1f\x8b", "a gzip file: upload it as an archive, or unpack it first"),
    (b"\x89HDF", "an HDF5 file: upload the safetensors file that PEFT saved"),
)


def known_beginning(prefix: bytes) -> Reason | None:
    """Return the reason against a weights file of another type; None if its first 8 bytes match no known type."""
    for beginning, sentence in _BEGINNINGS:
        if prefix.lower().startswith(beginning.lower()):
            found = sentence.partition(":")[0].partition(",")[0]
            return Reason("unknown_format", WEIGHTS_FILE, found, "a safetensors file", f"{WEIGHTS_FILE} is {sentence}.")
    return None


_CONVERTIBLE = re.compile(r"(?:pissa|olora|corda|lora_ga)", re.ASCII | re.IGNORECASE)


def changed_base(init: object, allowed: str) -> Reason:
    """Return the reason against an initialisation that also changed the base's weights."""
    found = show(init)
    if isinstance(init, str) and _CONVERTIBLE.match(init):
        todo = (
            "convert it to a plain LoRA with `model.save_pretrained(FOLDER, "
            "path_initial_model_for_weight_conversion=INITIAL)`, INITIAL being the adapter saved before training"
        )
    elif isinstance(init, str) and init.lower() == "loftq":
        todo = "train on the plain base, as LoftQ's base is another one"
    else:
        todo = f"train with {allowed.partition(';')[0]}"
    sentence = f"init_lora_weights {found} may have changed the base's weights too: {todo}."
    return Reason("unsupported_init", "init_lora_weights", found, allowed, sentence)
