"""Merge by PEFT itself, in a separate process, see :mod:`app.merging.__main__`.

PEFT reads the shapes, the dtype and the device of the base's weights, never their values. The base is therefore built
hollow: each weight is a single zero expanded to its shape, so a base of any size takes no memory. Its dtype is that of
its ``config.json``, as transformers loads it, because PEFT creates the result of ``cat`` in the base's dtype. Of the
sources' configs only those keys are kept that define what is adapted and how. All of these keys are validated ones.
See docs/decisions/0028-merging-with-peft.md.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.utils import get_peft_model_state_dict
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.errors import Reason
from app.merging import RESULT_FOLDER

_KEPT_KEYS = frozenset(
    {
        "alpha_pattern",
        "exclude_modules",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "r",
        "rank_pattern",
        "target_modules",
        "use_rslora",
    }
)
_PREFIX = "base_model.model."


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """One merge.

    Attributes:
        base: folder with the base model's ``config.json``.
        base_name: name of the base in the result's config.
        sources: folders with the two files that PEFT saves, in the recipe's order.
        versions: names of the sources for error reasons.
        arguments: keyword arguments of ``add_weighted_adapter``.
        seed: seed of torch's random numbers; None: the method draws none.
        folder: an empty folder; the result's files will be in its subfolder ``merged``.
    """

    base: str
    base_name: str
    sources: list[str]
    versions: list[str]
    arguments: dict[str, Any]
    seed: int | None
    folder: str


def merge(job: Job) -> list[Reason]:
    """Merge the sources and save the result, or return every reason why they cannot be merged."""
    names = [f"source{index}" for index in range(len(job.sources))]
    model, reasons = _load(job, names)
    if reasons:
        return reasons
    _let_go_of_svd(model.base_model)
    if job.seed is not None:
        # PEFT draws the result's initial values before the method draws. The merge replaces these values, but
        # without the same draws the random state would differ from PEFT's.
        model.peft_config[names[0]].init_lora_weights = _initialisation(Path(job.sources[0]))
        torch.manual_seed(job.seed)
    model.add_weighted_adapter(names, adapter_name=RESULT_FOLDER, **job.arguments)
    _save(model, Path(job.folder))
    return []


def hollow_base(folder: Path) -> torch.nn.Module:
    """Build the base model with its shapes and dtype, but without its weights."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if hasattr(config, "quantization_config"):
        # A quantized model has the same shapes.
        del config.quantization_config
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config, dtype=config.dtype or torch.float32)
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            zero = torch.zeros((), dtype=weight.dtype).expand(weight.shape)
            setattr(module, name, torch.nn.Parameter(zero, requires_grad=False))
    return model


def _load(job: Job, names: Sequence[str]) -> tuple[PeftModel, list[Reason]]:
    model: PeftModel | None = None
    reasons = []
    for name, source, version in zip(names, job.sources, job.versions, strict=True):
        folder = _prepared(Path(source), Path(job.folder) / name, job.base_name)
        if model is None:
            model = PeftModel.from_pretrained(hollow_base(Path(job.base)), folder, adapter_name=name)
        else:
            model.load_adapter(folder, adapter_name=name)
        # PEFT would fill missing tensors with random values.
        expected = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
        if missing := expected.keys() - _tensor_names(folder):
            found = f"{version} without {len(missing)} tensors, the first {min(missing)}"
            allowed = "tensors for each module that target_modules names"
            lacks = f"{version} lacks {len(missing)} tensors of its target_modules, such as {min(missing)}."
            sentence = f"{lacks} Merge a version that has all of them."
            reasons.append(Reason("incomplete_source", "sources", found, allowed, sentence))
    return model, reasons


def _prepared(source: Path, folder: Path, base_name: str) -> Path:
    """Create a folder for PEFT with the source's weights and the config keys that a merge needs."""
    folder.mkdir(mode=0o700)
    config = json.loads((source / CONFIG_NAME).read_bytes())
    kept = {key: value for key, value in config.items() if key in _KEPT_KEYS and value is not None}
    (folder / WEIGHTS_NAME).symlink_to(source / WEIGHTS_NAME)
    targets = kept["target_modules"]
    if isinstance(targets, str) and targets.lower() != "all-linear":
        # A tenant's regular expression could run for hours. The tensors show which modules it matched.
        kept["target_modules"] = _modules(_tensor_names(folder))
    kept |= {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "inference_mode": True}
    kept |= {"base_model_name_or_path": base_name, "init_lora_weights": False}
    (folder / CONFIG_NAME).write_text(json.dumps(kept))
    return folder


def _tensor_names(folder: Path) -> set[str]:
    with safe_open(folder / WEIGHTS_NAME, framework="pt") as file:
        return set(file.keys())


def _modules(tensors: set[str]) -> list[str]:
    return sorted({name.removeprefix(_PREFIX).rsplit(".lora_", 1)[0] for name in tensors})


def _initialisation(source: Path) -> bool | str:
    """Return an ``init_lora_weights`` with the same random draws as the source's, but without need for base weights."""
    config = json.loads((source / CONFIG_NAME).read_bytes())
    init = config.get("init_lora_weights", True)
    if not isinstance(init, str):
        return bool(init)
    match init.lower():
        case "gaussian":
            return "gaussian"
        case "lora_ga":
            return True
        case "orthogonal" if config["r"] % 2 == 0:
            return "orthogonal"
        case _:
            return False


def _let_go_of_svd(tuner: Any) -> None:
    """Make PEFT copy the parts of a decomposition that it keeps, so that the whole can be freed.

    PEFT keeps views of the whole. See docs/decisions/0028-merging-with-peft.md.
    """
    decompose = tuner._svd_generalized_task_arithmetic_weighted_adapter

    def copied(*args: Any, **options: Any) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.clone() for tensor in decompose(*args, **options))

    tuner._svd_generalized_task_arithmetic_weighted_adapter = copied


def _save(model: PeftModel, folder: Path) -> None:
    model.save_pretrained(folder, selected_adapters=[RESULT_FOLDER], save_embedding_layers=False)
    path = folder / RESULT_FOLDER / CONFIG_NAME
    config = json.loads(path.read_bytes())
    # The tensors hold every scaling already, and lora_alpha is r. PEFT keeps the first source's use_rslora, which would
    # scale the result by another factor of sqrt(r).
    config |= {"use_rslora": False, "init_lora_weights": True}
    # PEFT writes a set in hash order. Sort it, so that the same merge gives the same bytes.
    config["target_modules"] = sorted(config["target_modules"])
    path.write_text(json.dumps(config, indent=2, sort_keys=True))
