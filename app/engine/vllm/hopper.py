"""Workaround for the miscompiled LoRA kernel on Hopper cards (compute capability 9.0: H100, H200, H20).

vLLM up to 0.32 pipelines ``lora_expand`` in two stages, which ptxas miscompiles for these cards (triton#9433).
vllm#48590 and vllm#52568 report NaN and garbled answers. vLLM 0.33 uses one stage. Tenora writes the same configuration
to files, in the folder where vLLM looks for tuned kernels.
"""

import json
import logging
from collections.abc import MutableMapping
from pathlib import Path

from vllm.platforms import current_platform
from vllm.version import __version_tuple__

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "VLLM_TUNED_CONFIG_FOLDER"
_HOPPER = (9, 0)
_FIXED_IN = (0, 33)
#: Slices of a packed layer: one alone, gate and up, query and key and value.
_SLICES = (1, 2, 3)


def needs_workaround() -> bool:
    """Return whether this vLLM miscompiles ``lora_expand`` for this machine's card; does not start CUDA."""
    if not current_platform.is_cuda() or __version_tuple__[:2] >= _FIXED_IN:
        return False
    capability = current_platform.get_device_capability()
    return capability is not None and tuple(capability) == _HOPPER


def use_one_stage(folder: Path, environ: MutableMapping[str, str], device_name: str) -> None:
    """Write the configuration for this card and point vLLM at it, unless the operator has set a folder.

    Args:
        folder: created if it is missing.
        device_name: name of the card, as the driver reports it.
    """
    if environ.get(FOLDER_VARIABLE) not in {None, "", str(folder)}:
        logger.warning(
            "%s is set, so Tenora writes no configuration of lora_expand for %s.", FOLDER_VARIABLE, device_name
        )
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in file_names(device_name):
        (folder / name).write_text(json.dumps(one_stage()), encoding="utf-8")
    environ[FOLDER_VARIABLE] = str(folder)
    logger.info("lora_expand runs in one stage on %s: %s", device_name, folder)


def file_names(device_name: str) -> list[str]:
    """Names that vLLM's ``load_lora_op_config`` reads: one for sums in place, one for sums elsewhere."""
    card = device_name.replace(" ", "_").replace("-", "_")
    return [f"{card}_EXPAND_{adds}.json" for adds in ("TRUE", "FALSE")]


def one_stage() -> dict[str, object]:
    """vLLM's default configuration with one stage.

    The keys are slots, slices, rows, rank and outputs. vLLM takes the nearest key of all but the slices, so one entry
    for each number of slices is enough.
    """
    return {"1": {str(slices): {"1": {"1": {"1": _expand(slices)}}} for slices in _SLICES}}


def _expand(slices: int) -> dict[str, int | None]:
    return {
        "block_m": 64,
        "block_n": 64 if slices > 1 else 128,
        "block_k": 32,
        "num_warps": 4,
        "num_ctas": 1,
        "num_stages": 1,
        "max_nreg": None,
    }
