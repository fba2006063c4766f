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
_UPLOAD = "Upload the folder that PEFT's `model.save_pretrained(FOLDER)` wrote."

_CLASS = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,80}", re.ASCII)
# transformers' module of an architecture, e.g. transformers.models.qwen2.modeling_qwen2.
_FAMILY = re.compile(r"transformers\.models\.([a-z0-9_]{1,40})(?:\..*)?", re.ASCII)
_TASK_CLASS = re.compile(r"\w*(?:For[A-Z]\w*|LMHeadModel)", re.ASCII)
_BASE_FAMILY, _BASE_CLASS = "llama", "LlamaForCausalLM"


def foreign_config(config: Mapping[str, Any]) -> Reason | None:
    """Return the reason against a config that is not a PEFT config at all; None if it may be one."""
    if not _PEFT_KEYS.isdisjoint(config):
        return None
    like, advice = _likeness(config)
    sentence = f"{CONFIG_FILE} is not a PEFT adapter config" + (f"; it looks like {like}" if like else "")
    return Reason("not_peft_config", CONFIG_FILE, like or "none of PEFT's keys", _PEFT, f"{sentence}. {advice}")


def _likeness(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the likely origin of a config that is not PEFT's, and the advice for it."""
    if not {"lora_parameters", "fine_tune_type", "adapter_path"}.isdisjoint(config):
        return "MLX-LM's", "Train the adapter with PEFT: MLX-LM uses other names and shapes."
    if isinstance(config.get("config"), Mapping) and not {"model_class", "hidden_size"}.isdisjoint(config):
        return "AdapterHub's", "Train the adapter with PEFT."
    if not {"tokenizer_class", "added_tokens_decoder"}.isdisjoint(config):
        return "a tokenizer's config", _UPLOAD
    if not {"architectures", "model_type", "hidden_size"}.isdisjoint(config):
        named = config.get("architectures")
        first = named[0] if isinstance(named, list) and named else config.get("model_type")
        suffix = f" ({first})" if isinstance(first, str) and _CLASS.fullmatch(first) else ""
        return f"a model's own config.json{suffix}", _UPLOAD
    if not {"learning_rate", "per_device_train_batch_size", "global_step"}.isdisjoint(config):
        return "a trainer's settings", _UPLOAD
    return "", _UPLOAD


def other_architecture(config: Mapping[str, Any]) -> Reason | None:
    """Return the reason against an adapter whose ``auto_mapping`` names a model class of another architecture."""
    mapping = config.get("auto_mapping")
    model_class = mapping.get("base_model_class") if isinstance(mapping, Mapping) else None
    if not isinstance(mapping, Mapping) or not isinstance(model_class, str) or not _CLASS.fullmatch(model_class):
        return None
    if _is_llama(model_class, mapping.get("parent_library")):
        return None
    sentence = (
        f"The adapter was trained for {model_class}, but this server's base is {_BASE_CLASS}. Train it on this base, "
        "or upload it to a server of the other base."
    )
    return Reason("other_architecture", "auto_mapping.base_model_class", model_class, _BASE_CLASS, sentence)


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


_SAVE_PRETRAINED = "`model.save_pretrained(FOLDER)`"
_LORA = r"\.lora_[AB]\."

#: Patterns of tensor names, each with the code and the sentence of its reason. The first match wins.
_NAMES: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern, re.ASCII), code, sentence)
    for pattern, code, sentence in (
        (
            r"(?:^|\.)unembed_tokens\.",
            "embedding_not_served",
            (
                "unembed_tokens is Tinker's name for lm_head. Export the adapter with tinker_cookbook's "
                "weights.build_lora_adapter, which names it lm_head, or train with train_unembed=False."
            ),
        ),
        (
            r"(?:^|\.)(?:embed_tokens|lm_head)\.(?:modules_to_save\.|base_layer\.)?weight$",
            "embedding_not_served",
            (
                "The file holds whole embeddings, not only an adapter. Save it again with "
                "`model.save_pretrained(FOLDER, save_embedding_layers=False)`. New tokens cannot be served."
            ),
        ),
        (
            rf"{_LORA}[A-Za-z0-9_]+\.weight$",
            "tensor_name",
            (
                "The tensor names hold the adapter's name, such as `lora_A.default.weight`, as in a raw state dict. "
                f"Save the adapter again with {_SAVE_PRETRAINED}, which omits it."
            ),
        ),
        (
            r"\.lora_[ab](?:\.weight)?$",
            "tensor_name",
            "The tensors have MLX-LM's names (lora_a, lora_b). Train the adapter with PEFT.",
        ),
        (
            r"(?:^|\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.|^module\.",
            "tensor_name",
            (
                "The tensor names hold a wrapper of the training loop (torch.compile, FSDP or DDP). Unwrap the model "
                f"with `accelerator.unwrap_model(model)`, then save the adapter again with {_SAVE_PRETRAINED}."
            ),
        ),
        (
            r"lora_magnitude_vector",
            "tensor_name",
            "The file holds DoRA magnitudes, which the engine cannot serve. Train with use_dora=False.",
        ),
        (
            rf"{_LORA}bias$|\.bias$",
            "tensor_name",
            "The file holds biases, which the engine cannot serve. Train with bias='none' and lora_bias=False.",
        ),
        (
            r"^lora_(?:unet|te)|^(?:unet|transformer|text_encoder)\.",
            "tensor_name",
            "The tensors belong to an adapter for images. This server serves adapters of a Llama.",
        ),
        (
            (
                r"\.(?:qkv_proj|gate_up_proj|c_attn|c_proj|c_fc|query_key_value|dense_4h_to_h|dense_h_to_4h|Wqkv|fc1|fc2|"
                r"out_proj|in_proj_qkv|experts)\."
            ),
            "tensor_name",
            (
                "The tensors change modules that a Llama does not have, so the adapter was trained on another "
                "architecture. Train it on this server's base."
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
    "The tensors are empty because the weights were not gathered before they were saved. With DeepSpeed ZeRO-3, set "
    "stage3_gather_16bit_weights_on_model_save to true, and save the adapter again."
)


def empty_tensor(name: str, shape: object) -> Reason:
    """Return the reason against a tensor without values."""
    return Reason("empty_tensor", name, f"shape {show(shape)}", "a shape without 0", _EMPTY)


_UPLOAD_SAVED = "Upload the safetensors file that PEFT saved."
_DOWNLOAD = "Download the file itself and upload it again."

#: Leading bytes of files that users upload by mistake in place of weights, each with its type and the advice for it.
_BEGINNINGS = (
    (b"version ", "a Git LFS pointer", "Run `git lfs pull` in its repository and upload the file again."),
    (b"GGUF", "a GGUF file", _UPLOAD_SAVED),
    (b"<!DOCT", "a web page", _DOWNLOAD),
    (b"<html", "a web page", _DOWNLOAD),
    (b"\x1f\x8b", "a gzip file", "Upload it as an archive, or unpack it first."),
    (b"\x89HDF", "an HDF5 file", _UPLOAD_SAVED),
)


def known_beginning(prefix: bytes) -> Reason | None:
    """Return the reason against a weights file of another type; None if its first 8 bytes match no known type."""
    for beginning, kind, advice in _BEGINNINGS:
        if prefix.lower().startswith(beginning.lower()):
            sentence = f"{WEIGHTS_FILE} is {kind}, not a safetensors file. {advice}"
            return Reason("unknown_format", WEIGHTS_FILE, kind, "a safetensors file", sentence)
    return None


_CONVERTIBLE = re.compile(r"(?:pissa|olora|corda|lora_ga)", re.ASCII | re.IGNORECASE)


def changed_base(init: object, allowed: str) -> Reason:
    """Return the reason against an initialisation that also changed the base's weights."""
    found = show(init)
    if isinstance(init, str) and _CONVERTIBLE.match(init):
        advice = (
            "Convert it to a plain LoRA with `model.save_pretrained(FOLDER, "
            "path_initial_model_for_weight_conversion=INITIAL)`. INITIAL is the adapter saved before training."
        )
    elif isinstance(init, str) and init.lower() == "loftq":
        advice = "Train on the plain base: LoftQ changes the base."
    else:
        advice = f"Train with one of {allowed.partition(';')[0]}."
    sentence = f"init_lora_weights is {found}, which may have changed the base's weights too. {advice}"
    return Reason("unsupported_init", "init_lora_weights", found, allowed, sentence)
