"""Bad adapters whose weights are good: one change to ``adapter_config.json`` each."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG = "adapter_config.json"

Change = Callable[[Path], None]


@dataclass(frozen=True)
class BadAdapter:
    """A bad adapter: ``change`` edits a copy of a good adapter's directory; ``code`` is the expected reason."""

    change: Change
    code: str


def config(**values: Any) -> Change:
    def change(directory: Path) -> None:
        path = directory / CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def without(key: str) -> Change:
    def change(directory: Path) -> None:
        path = directory / CONFIG
        values = json.loads(path.read_text())
        del values[key]
        path.write_text(json.dumps(values))

    return change


def _config_text(edit: Callable[[str], str | bytes]) -> Change:
    def change(directory: Path) -> None:
        path = directory / CONFIG
        edited = edit(path.read_text())
        path.write_bytes(edited.encode() if isinstance(edited, str) else edited)

    return change


_EVIL = "(.*)*(.*)*(.*)*(.*)*(.*)*(.*)*x"

_FEATURES = {
    **{
        f"feature {key}": BadAdapter(config(**{key: value}), "unsupported_feature")
        for key, value in {
            "use_dora": True,
            "lora_bias": True,
            "bias": "lora_only",
            "alora_invocation_tokens": [1, 2],
            "layer_replication": [[0, 1], [0, 1]],
            "modules_to_save": ["lm_head"],
            "kasa_config": {"beta": 0.1},
            "arrow_config": {"top_k": 3},
            "target_parameters": ["mlp.experts.down_proj"],
            "trainable_token_indices": [1],
            "megatron_config": {"tensor_model_parallel_size": 2},
            "use_qalora": True,
            "use_bdlora": {"nblocks": 2},
            "monteclora_config": {"num_samples": 8},
            "velora_config": {"num_groups": 8},
        }.items()
    },
    **{
        f"initialised by {init}": BadAdapter(config(init_lora_weights=init), "unsupported_init")
        for init in ("pissa", "pissa_niter_16", "PiSSA", "olora", "corda", "loftq", "something new")
    },
    "bias of all": BadAdapter(config(bias="all"), "unsupported_feature"),
    "bias null": BadAdapter(config(bias=None), "unsupported_feature"),
    "peft_type of another method": BadAdapter(config(peft_type="LOHA"), "unsupported_peft_type"),
    "no peft_type": BadAdapter(without("peft_type"), "unsupported_peft_type"),
    "unknown key": BadAdapter(config(use_something_new=True), "unknown_key"),
    "unknown key of odd characters": BadAdapter(config(**{"a\nb": [0]}), "unknown_key"),
}

_CONFIG = {
    "slow regular expression for ranks": BadAdapter(config(rank_pattern={_EVIL: 4}), "unsafe_pattern"),
    "slow regular expression for alphas": BadAdapter(config(alpha_pattern={_EVIL: 4}), "unsafe_pattern"),
    "slow regular expression for targets": BadAdapter(config(target_modules=_EVIL), "unsafe_pattern"),
    "slow regular expression for what is excluded": BadAdapter(config(exclude_modules=_EVIL), "unsafe_pattern"),
    "regular expression for ranks that the tensors do not have": BadAdapter(
        config(rank_pattern={r".*layers\.0\..*_proj": 3}), "rank_mismatch"
    ),
    "no regular expression for ranks": BadAdapter(config(rank_pattern={"(q_proj": 4}), "invalid_pattern"),
    "no regular expression for alphas": BadAdapter(config(alpha_pattern={"*": 4}), "invalid_pattern"),
    "no regular expression for targets": BadAdapter(config(target_modules="[q"), "invalid_pattern"),
    "no regular expression for what is excluded": BadAdapter(config(exclude_modules="q{2,1}"), "invalid_pattern"),
    "expression nested too deeply": BadAdapter(config(rank_pattern={"(" * 9999 + ")" * 9999: 4}), "invalid_pattern"),
    "repetition too large": BadAdapter(config(alpha_pattern={f"q{{{10**30}}}": 4}), "invalid_pattern"),
    "regular expression for targets that leaves tensors out": BadAdapter(
        config(target_modules=r".*\.layers\.1\..*"), "not_in_target_modules"
    ),
    "regular expression that excludes tensors": BadAdapter(
        config(exclude_modules=r".*\.layers\.0\..*"), "not_in_target_modules"
    ),
    "patterns are a list": BadAdapter(config(rank_pattern=["q_proj"]), "invalid_value"),
    "no rank": BadAdapter(without("r"), "invalid_value"),
    "no alpha": BadAdapter(without("lora_alpha"), "invalid_value"),
    "no targets": BadAdapter(without("target_modules"), "invalid_value"),
    "rank true": BadAdapter(config(r=True), "invalid_value"),
    "rank 0": BadAdapter(config(r=0), "invalid_value"),
    "rank 4.0": BadAdapter(config(r=4.0), "invalid_value"),
    "alpha 0": BadAdapter(config(lora_alpha=0), "invalid_value"),
    "alpha negative": BadAdapter(config(lora_alpha=-8), "invalid_value"),
    "alpha huge": BadAdapter(config(lora_alpha=1e300), "invalid_value"),
    "alpha in words": BadAdapter(config(lora_alpha="16"), "invalid_value"),
    "rsLoRA in words": BadAdapter(config(use_rslora="true"), "invalid_value"),
    "layers in words": BadAdapter(config(layers_to_transform="0"), "invalid_value"),
    "layers_pattern a regular expression": BadAdapter(config(layers_pattern=[_EVIL]), "invalid_value"),
    "exclude_modules a number": BadAdapter(config(exclude_modules=1), "invalid_value"),
    "task_type a list": BadAdapter(config(task_type=["CAUSAL_LM"]), "invalid_value"),
    "targets are numbers": BadAdapter(config(target_modules=[1]), "invalid_value"),
    "target of odd characters": BadAdapter(config(target_modules=["q_proj\n"]), "invalid_value"),
    "only targets that Llama lacks": BadAdapter(config(target_modules=["c_attn"]), "not_in_target_modules"),
    "the head as a target": BadAdapter(config(target_modules=["q_proj", "lm_head"]), "unsupported_target"),
    "the embedding as a target": BadAdapter(config(target_modules=["q_proj", "embed_tokens"]), "unsupported_target"),
    "config is empty": BadAdapter(_config_text(lambda _: ""), "config_not_json"),
    "config is a list": BadAdapter(_config_text(lambda text: f"[{text}]"), "config_not_json"),
    "config is cut": BadAdapter(_config_text(lambda text: text[:-3]), "config_not_json"),
    "config is UTF-16": BadAdapter(_config_text(lambda text: text.encode("utf-16")), "config_not_json"),
    "config holds NaN": BadAdapter(config(lora_alpha=float("nan")), "config_not_json"),
    "config holds 1e999": BadAdapter(_config_text(lambda text: '{"r": 1e999,' + text[1:]), "config_not_json"),
    "config has a key twice": BadAdapter(_config_text(lambda text: '{"r": 8,' + text.lstrip()[1:]), "config_not_json"),
    "config is deep": BadAdapter(
        _config_text(lambda text: '{"x":' + "[" * 500_000 + "]" * 500_000 + "," + text[1:]), "config_not_json"
    ),
    "config with half a surrogate pair": BadAdapter(
        _config_text(lambda text: '{"revision_": "\\ud800",' + text.lstrip()[1:]), "config_not_json"
    ),
    "config with a NUL": BadAdapter(config(base_model_name_or_path="a\x00b"), "config_not_json"),
    "config too large": BadAdapter(_config_text(lambda text: text + " " * 2**20), "config_too_large"),
}

BAD_CONFIGS: dict[str, BadAdapter] = _FEATURES | _CONFIG
