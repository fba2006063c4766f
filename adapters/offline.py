"""Offline validation: the upload gate's checks on an owner's machine, without a server."""

from pathlib import Path
from typing import Any

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.geometry import read_geometry
from adapters.strict_json import parse_object
from adapters.validation import validate


def refusal_reasons(folder: Path, base: Path, max_lora_rank: int) -> list[dict[str, Any]]:
    """Return the reasons why a server with this base would refuse an adapter, as its answer lists them.

    The client finds this function by the entry-point group ``tenora.validators``. The files are the owner's, so they
    need no sandbox.

    Args:
        folder: folder with the adapter's two files.
        base: folder of the base model, with its ``config.json``.

    Raises:
        ValueError: the base has no valid config.json.
        UnsupportedBase: the base is not a Llama.
        OSError, EOFError: a file of the adapter cannot be read.
    """
    try:
        config = parse_object((base / "config.json").read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{base} has no config.json. Give the folder of a Hugging Face model.") from None
    except ValueError:
        raise ValueError(f"{base / 'config.json'} is not a JSON object.") from None
    geometry = read_geometry(config)
    verdict = validate(
        folder / CONFIG_NAME, folder / WEIGHTS_NAME, geometry, max_lora_rank, base_name=base.name, base=base
    )
    return [reason.shown() for reason in verdict.reasons]
