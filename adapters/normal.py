"""Normal form of an adapter: rewrite files that vLLM would read differently from PEFT.

vLLM expects ``base_model.model.`` before each name. Its workers run the keys of ``rank_pattern`` and ``alpha_pattern``
as regular expressions. A file that needs neither is normal as uploaded. Only files that are not normal are rewritten.
The output is deterministic: the same upload gives the same bytes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.manifest import CONFIG_FILE, Declared, Manifest
from adapters.modules import Pair, standard_names
from adapters.patterns import PLAIN
from adapters.strict_json import parse_object
from adapters.weights import WEIGHTS_FILE, Header, write_renamed

#: vLLM compiles each plain pattern for each module and caches 500 compiled patterns. Beyond that it would compile them
#: again and again. This limit allows one rank and one alpha pattern for each linear layer of a 32-layer model. Full
#: names are looked up instead: see ``app/engine/vllm/worker/stager.py``.
MAX_PLAIN_PATTERNS = 448

#: Keys that a rewritten config copies from the uploaded one. All have been checked.
_KEPT = ("base_model_name_or_path", "init_lora_weights", "peft_version")


@dataclass(frozen=True, slots=True)
class Accepted:
    """Validated upload, with the fields that its normal form needs.

    Attributes:
        config: bytes of ``adapter_config.json``.
        weights: path of the tensors' file.
        declared: settings that the manifest declares, by module.
    """

    config: bytes
    weights: Path
    manifest: Manifest
    header: Header
    pairs: Sequence[Pair]
    declared: Mapping[str, Declared]


def write_normal(upload: Accepted, folder: Path) -> tuple[str, ...]:
    """Write the normal form of each file that is not normal into an empty folder.

    Returns:
        Names of the files written.

    Raises:
        OSError: a file could not be read or written.
    """
    written = []
    config, names = parse_object(upload.config), standard_names(upload.pairs)
    if not _is_normal(config):
        text = json.dumps(_normal_config(config, upload), indent=2, sort_keys=True)
        (folder / CONFIG_FILE).write_text(text, encoding="utf-8")
        written.append(CONFIG_FILE)
    # A saved head is dropped because it equals the base's.
    if any(old != new for old, new in names.items()) or len(names) < len(upload.header.tensors):
        with upload.weights.open("rb") as source, (folder / WEIGHTS_FILE).open("xb") as target:
            write_renamed(source, upload.header, names, target)
        written.append(WEIGHTS_FILE)
    return tuple(written)


def _is_normal(config: Mapping[str, Any]) -> bool:
    ranks, alphas = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}
    texts = (config["target_modules"], config.get("exclude_modules"))
    return (
        not any(isinstance(text, str) and text for text in texts)
        and len(ranks) + len(alphas) <= MAX_PLAIN_PATTERNS
        and all(PLAIN.fullmatch(key) for key in (*ranks, *alphas))
    )


def _normal_config(config: Mapping[str, Any], upload: Accepted) -> dict[str, Any]:
    """Return an equivalent config for these pairs, with full names in place of expressions."""
    manifest, declared = upload.manifest, upload.declared
    modules = [pair.module for pair in upload.pairs]
    return {key: config[key] for key in _KEPT if key in config} | {
        "alpha_pattern": {name: declared[name].alpha for name in modules if declared[name].alpha != manifest.alpha},
        "bias": "none",
        "inference_mode": True,
        "lora_alpha": manifest.alpha,
        "peft_type": "LORA",
        "r": manifest.rank,
        "rank_pattern": {name: declared[name].rank for name in modules if declared[name].rank != manifest.rank},
        "target_modules": modules,
        "task_type": "CAUSAL_LM",
        "use_rslora": manifest.rslora,
    }
