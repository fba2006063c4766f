"""Chat template of a model's or adapter's folder, from either place that transformers uses."""

import hashlib
import json
from pathlib import Path

_MAX_BYTES = 16 * 2**20


def template_digest(folder: Path) -> str | None:
    """Return the SHA-256 (hex) of the folder's chat template, stripped of outer white space; None without. Blocks."""
    text = read_template(folder)
    return None if text is None else hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).hexdigest()


def read_template(folder: Path, name: str = "default") -> str | None:
    """Read the chat template from its own file, else from ``tokenizer_config.json``. Blocks.

    Args:
        name: name of one of the folder's templates; ``default`` is the one that applies if no name is given.
    """
    default = folder / "chat_template.jinja"
    text = _read(default if name == "default" else folder / "additional_chat_templates" / f"{name}.jinja")
    if text is not None:
        return text if text.strip() else None
    if name != "default" and default.is_file():
        return None
    raw = _read(folder / "tokenizer_config.json")
    try:
        config = json.loads(raw) if raw else None
    except (ValueError, RecursionError):
        config = None
    template = config.get("chat_template") if isinstance(config, dict) else None
    if isinstance(template, list):
        # A list of named templates: transformers uses ``default`` if no name is given.
        templates = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = templates.get(name)
    elif name != "default":
        return None
    return template if isinstance(template, str) and template.strip() else None


def _read(path: Path) -> str | None:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
