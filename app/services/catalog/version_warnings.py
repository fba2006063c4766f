"""Version warnings: reasons why a served version may answer worse than its owner expects. Pure."""

from collections.abc import Mapping, Set
from typing import Any

from adapters.bases import same_base
from adapters.strict_json import show_name
from app.domain.adapters import Version
from app.served_base import ServedBase


def warnings_of(version: Version, base: ServedBase) -> list[str]:
    """Return warnings about a version, derived from its manifest; empty for most versions."""
    checked = version.provenance
    known_as = base.known_as if checked.base_digest in (None, base.digest) else {checked.base_name or base.name}
    return _other_base(version.manifest, known_as, checked.base_name or base.name)


def warnings_of_manifest(manifest: Mapping[str, Any], base: ServedBase) -> list[str]:
    """Return the warnings that a version with this manifest would have on this base."""
    return _other_base(manifest, base.known_as, base.name)


def _other_base(manifest: Mapping[str, Any], known_as: Set[str], ours: str) -> list[str]:
    """Warn if the config names another base than the one that the version was validated against."""
    named = manifest.get("base_model_name_or_path")
    if not isinstance(named, str) or not named.strip() or same_base(named, known_as):
        return []
    theirs = f"adapter_config.json says that the adapter was trained on {show_name(named)}"
    return [f"{theirs}, but this server's base is {ours}. It answers well only if both are the same model."]
