"""Adapters as other tools write them, each a modified good adapter, served as PEFT computes them.

The changes work on any good adapter of a Llama with one rank in all of its modules, layers 0 and 1 among them.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file

from tests.support.bad_configs import CONFIG, Change, config
from tests.support.bad_weights import WEIGHTS

#: File names of the two files.
BOTH = (CONFIG, WEIGHTS)


@dataclass(frozen=True)
class OddAdapter:
    """One change.

    Attributes:
        change: function that edits a copy of a good adapter's directory.
        rewritten: files that get a normal form.
        warned: part of the version's only warning; "": it has none.
        for_peft: function that makes the files that PEFT reads; None: PEFT reads the uploaded files.
    """

    change: Change
    rewritten: tuple[str, ...] = ()
    warned: str = ""
    for_peft: Change | None = None


def _nothing(_: Path) -> None:
    """Leave the good adapter unchanged for PEFT."""


def _all(*changes: Change) -> Change:
    def change(directory: Path) -> None:
        for one in changes:
            one(directory)

    return change


def _prefix(old: str, new: str) -> Change:
    def change(directory: Path) -> None:
        path = directory / WEIGHTS
        renamed = {new + name.removeprefix(old): tensor for name, tensor in load_file(path).items()}
        save_file(renamed, path, metadata={"format": "pt"})

    return change


def _more_targets(*names: str) -> Change:
    def change(directory: Path) -> None:
        targets = json.loads((directory / CONFIG).read_text())["target_modules"]
        config(target_modules=[*targets, *names])(directory)

    return change


def _halve_ranks(part: str) -> Change:
    """Halve the rank of every module with this in its name."""

    def change(directory: Path) -> None:
        path = directory / WEIGHTS
        rank = json.loads((directory / CONFIG).read_text())["r"] // 2
        tensors = load_file(path)
        for name, tensor in tensors.items():
            if part in name:
                tensors[name] = (tensor[:rank] if "lora_A" in name else tensor[:, :rank]).contiguous()
        save_file(tensors, path, metadata={"format": "pt"})

    return change


def _half_rank(*patterns: str) -> Change:
    def change(directory: Path) -> None:
        rank = json.loads((directory / CONFIG).read_text())["r"] // 2
        config(rank_pattern=dict.fromkeys(patterns, rank))(directory)

    return change


_PREFIX = "base_model.model."
_LAYER_1 = r".*\.layers\.1\..*(q_proj|k_proj|v_proj|o_proj)"
#: Layer names of a 70B model, a few of which a small base has.
_NAMES = [
    f"model.layers.{layer}.{module}"
    for layer in range(80)
    for module in (
        *(f"self_attn.{kind}_proj" for kind in "qkvo"),
        *(f"mlp.{kind}_proj" for kind in ("gate", "up", "down")),
    )
]

ODD: dict[str, OddAdapter] = {
    "no prefix": OddAdapter(_prefix(_PREFIX, ""), (WEIGHTS,), for_peft=_nothing),
    "prefix twice": OddAdapter(_prefix("", _PREFIX), (WEIGHTS,), for_peft=_nothing),
    "no prefix, and expressions": OddAdapter(
        _all(_prefix(_PREFIX, ""), config(alpha_pattern={_LAYER_1: 3})),
        BOTH,
        for_peft=config(alpha_pattern={_LAYER_1: 3}),
    ),
    "a target without tensors": OddAdapter(_more_targets("layers.9999.mlp.up_proj"), warned="which has no tensors"),
    "a target that a Llama lacks": OddAdapter(
        _more_targets("c_attn", "in_proj_b", "xxx", "h.0/attn w"), warned="which has no tensors"
    ),
    "fan_in_fan_out": OddAdapter(config(fan_in_fan_out=True)),
    "ensure_weight_tying": OddAdapter(config(ensure_weight_tying=True)),
    "task_type": OddAdapter(config(task_type="SEQ_CLS"), for_peft=_nothing),
    "a regular expression for ranks": OddAdapter(
        _all(_halve_ranks(".layers.1."), _half_rank(r".*\.layers\.1\..*")), (CONFIG,)
    ),
    "a regular expression for alphas": OddAdapter(config(alpha_pattern={_LAYER_1: 3}), (CONFIG,)),
    "full names after a caret": OddAdapter(
        _all(
            _halve_ranks(".layers.1.self_attn.q_proj."),
            _half_rank("^model.layers.1.self_attn.q_proj"),
            config(alpha_pattern={"^model.layers.1.self_attn.q_proj": 64}),
        ),
        (CONFIG,),
    ),
    "the first of several expressions": OddAdapter(
        config(alpha_pattern={r"layers\.[0].*q_proj": 2, "q_proj": 5, ".*": 3}), (CONFIG,)
    ),
    "too many patterns": OddAdapter(config(alpha_pattern={f"m{i}": 1 for i in range(449)}), (CONFIG,)),
    "an alpha for each module of a larger base": OddAdapter(
        config(alpha_pattern={name: 3 + number % 20 for number, name in enumerate(_NAMES)}), (CONFIG,)
    ),
    "expressions and rsLoRA": OddAdapter(config(alpha_pattern={_LAYER_1: 3}, use_rslora=True), (CONFIG,)),
    "exclude_modules as text": OddAdapter(config(exclude_modules=r".*(vision|audio).*"), (CONFIG,)),
    "target_modules as text": OddAdapter(
        config(target_modules=r"model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj"), (CONFIG,)
    ),
    "target_modules all-linear": OddAdapter(config(target_modules="all-linear"), (CONFIG,)),
    "keys of other tools": OddAdapter(
        config(enable_lora=[True], merge_weights=True, unsloth_fixed=True, lorap_emb_lr=1e-6)
    ),
    "unknown keys, switched off": OddAdapter(config(use_something_new=False, another=None)),
}
