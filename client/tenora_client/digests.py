"""Digests that the server computes too, so that client and server can compare files by them."""

import hashlib
import json
from pathlib import Path
from typing import Any, Optional

_MAX_TEMPLATE_BYTES = 16 * 2**20


def content_digest(config_digest: str, weights_digest: str) -> str:
    """Compute the digest of a version: SHA-256 (hex) over the digests of its two files, config first."""
    return hashlib.sha256(f"tenora-adapter\n{config_digest}\n{weights_digest}\n".encode()).hexdigest()


def template_digest(folder: Path) -> Optional[str]:
    """Compute the SHA-256 (hex) of a folder's chat template without outer white space; None without a template.

    The template is in ``chat_template.jinja``, else in ``tokenizer_config.json``, as transformers saves it.
    """
    text = _read(folder / "chat_template.jinja")
    if text is None:
        text = _configured_template(folder / "tokenizer_config.json")
    if text is None or not text.strip():
        return None
    return hashlib.sha256(text.strip().encode("utf-8", "surrogatepass")).hexdigest()


def _configured_template(path: Path) -> Optional[str]:
    try:
        config: Any = json.loads(_read(path) or "null")
    except (ValueError, RecursionError):
        return None
    template = config.get("chat_template") if isinstance(config, dict) else None
    if isinstance(template, list):
        # A list of named templates: transformers uses ``default`` if no name is given.
        templates = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = templates.get("default")
    return template if isinstance(template, str) else None


def _read(path: Path) -> Optional[str]:
    try:
        if path.stat().st_size > _MAX_TEMPLATE_BYTES:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
