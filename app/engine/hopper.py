"""Keeps vLLM's LoRA kernel from being miscompiled for Hopper cards (compute capability 9.0: H100, H200, H20).

Up to 0.32 vLLM pipelines ``lora_expand`` in two stages, which ptxas turns into wrong code there (triton#9433;
vllm#48590 and #52568 report NaN and garbled answers). 0.33 has one stage. The same configuration in files, where vLLM
looks for tuned ones, cures 0.32.
"""

import json
import logging
from collections.abc import MutableMapping
from pathlib import Path

from vllm.platforms import current_platform
from vllm.version import __version_tuple__

logger = logging.getLogger(__name__)

FOLDER = "VLLM_TUNED_CONFIG_FOLDER"
_HOPPER = (9, 0)
_CURED = (0, 33)
#: Slices of a packed layer: alone, gate and up, query and key and value.
_SLICES = (1, 2, 3)


def is_miscompiled() -> bool:
    """Whether this vLLM's own configuration is miscompiled for this machine's card; asks the driver, not CUDA."""
    if not current_platform.is_cuda() or __version_tuple__[:2] >= _CURED:
        return False
    capability = current_platform.get_device_capability()
    return capability is not None and tuple(capability) == _HOPPER


def use_one_stage(folder: Path, environ: MutableMapping[str, str], device_name: str) -> None:
    """Write the configuration for this card and point vLLM at it, unless the operator has named a folder.

    Args:
        folder: made if it is not there.
        device_name: of the card, as the driver says it.
    """
    if environ.get(FOLDER) not in {None, "", str(folder)}:
        logger.warning("%s is set: it has to cure lora_expand on %s by itself", FOLDER, device_name)
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in file_names(device_name):
        (folder / name).write_text(json.dumps(configuration()), encoding="utf-8")
    environ[FOLDER] = str(folder)
    logger.info("lora_expand runs in one stage on %s: %s", device_name, folder)


def file_names(device_name: str) -> list[str]:
    """What vLLM's ``load_lora_op_config`` looks for: one file for sums in place, one for sums elsewhere."""
    card = device_name.replace(" ", "_").replace("-", "_")
    return [f"{card}_EXPAND_{adds}.json" for adds in ("TRUE", "FALSE")]


def configuration() -> dict[str, object]:
    """vLLM's default with one stage, by slots, slices, rows, rank, outputs; of all but slices the nearest counts."""
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
