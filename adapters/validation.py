"""Validation of an upload against this base: collects all reasons in one pass.

``python -m adapters.validation`` is the child process of :mod:`adapters.sandbox`. It reads one JSON request from
standard input and writes one JSON verdict to standard output.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters.bases import wrong_base
from adapters.confinement import confine
from adapters.errors import AdapterRejected, Reason, grouped
from adapters.geometry import BaseGeometry
from adapters.manifest import CONFIG_FILE, MAX_CONFIG_BYTES, Declared, Manifest, declares_ranks, inspect_manifest
from adapters.modules import (
    Pair,
    check_declared,
    check_head,
    check_largest_rank,
    check_pair,
    check_rank,
    is_saved_head,
    pair_tensors,
    unused_targets,
)
from adapters.normal import Accepted, write_normal
from adapters.patterns import InvalidPattern, TooSlow, cpu_limit
from adapters.saved_head import check_saved_heads
from adapters.stores.files import NO_ROOM
from adapters.strict_json import show
from adapters.weights import find_nonfinite, read_header

#: Reasons that depend on the server's settings.
_SERVER_DECIDES = frozenset({"rank_too_large", "embedding_not_served", "head_not_served", "unsupported_target"})

#: CPU time for all regular expressions of one config, in seconds. See
#: docs/decisions/0012-limit-the-cpu-time-of-peft-patterns.md.
PATTERN_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """Summary of an accepted version.

    Attributes:
        rank: largest rank of its modules.
        alpha: ``lora_alpha``.
        target_modules: kinds of linear layers that it changes, in the order of a Llama block.
        parameters: number of values in its tensors.
        dtype: dtype of its tensors, as safetensors names it; several are joined with ``+``.
        modules: number of linear layers that it changes.
        saved_heads: names of the full copies of the head in the file.
    """

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    parameters: int
    dtype: str
    modules: int
    saved_heads: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a validation: either a summary or at least one reason.

    Attributes:
        summary: summary of an accepted upload; None if it is rejected.
        reasons: one for each kind, the most informative first.
        warnings: settings of an accepted upload that have no effect, one for each kind.
        rewritten: names of the files that have a normal form different from the upload, see :mod:`adapters.normal`.
    """

    summary: Summary | None
    reasons: tuple[Reason, ...]
    warnings: tuple[Reason, ...] = ()
    rewritten: tuple[str, ...] = ()

    def accepted(self) -> Summary:
        """Return the summary.

        Raises:
            AdapterRejected: the upload is rejected; carries the reasons.
        """
        if self.summary is None:
            raise AdapterRejected(self.reasons)
        return self.summary


def validate(
    config: Path,
    weights: Path,
    geometry: BaseGeometry,
    max_lora_rank: int,
    *,
    base_name: str = "this base",
    head: bool = False,
    base: Path | None = None,
    normal: Path | None = None,
    pattern_seconds: float = PATTERN_SECONDS,
    whole_bytes: int | None = None,
) -> Verdict:
    """Validate an upload's two files. Both are untrusted: see :mod:`adapters.sandbox`.

    Args:
        base_name: name of the base in reasons.
        head: whether the engine serves adapters of the head.
        base: folder of the base, to compare a saved head with; None refuses every saved head.
        normal: empty folder for the files' normal forms; None writes none.
        pattern_seconds: CPU time for the config's regular expressions, in seconds.
        whole_bytes: size of the whole weights file, if ``weights`` holds only its header. No value is checked then, and
            no normal form can be written.

    Raises:
        OSError, EOFError: a file could not be read or written.
    """
    raw = _read_config(config)
    manifest, config_reasons = inspect_manifest(raw)
    if is_foreign(config_reasons):
        return Verdict(None, tuple(config_reasons))
    with weights.open("rb") as file:
        header, weights_reasons = read_header(file, whole_bytes=whole_bytes)
        if header is None:
            return Verdict(None, grouped(config_reasons + weights_reasons))
        pairs = pair_tensors(header, weights_reasons)
        weights_reasons += check_largest_rank(pairs, manifest, max_lora_rank)
        weights_reasons += check_head(pairs, manifest, geometry, served=head)
        adapted = any(pair.layer is None for pair in pairs)
        weights_reasons += check_saved_heads(
            file, header, geometry, adapted=adapted, served=head, base=base, has_values=whole_bytes is None
        )
        weights_reasons += _check_places(pairs, geometry, manifest, base_name)
        # A file can name thousands of layers. Patterns run only for layers that the base has.
        placed = [pair for pair in pairs if pair.layer is None or pair.layer < geometry.layers]
        declared = _declare(placed, manifest, pattern_seconds, weights_reasons)
        if manifest:
            weights_reasons += _check_declared(placed, manifest, declared, config_reasons)
        if whole_bytes is None:
            weights_reasons += find_nonfinite(file, header, geometry.dtype, _scalings(placed, declared))
    if config_reasons or weights_reasons or manifest is None:
        return Verdict(None, grouped(config_reasons + weights_reasons))
    upload = Accepted(raw, weights, manifest, header, pairs, declared)
    rewritten = write_normal(upload, normal) if normal else ()
    return Verdict(_summarise(upload), (), grouped(unused_targets(pairs, manifest)), rewritten)


def precheck(config: Path, weights: Path) -> tuple[Reason, ...]:
    """Find the faults that two files have on any base, for their owner, before the upload.

    Raises:
        OSError, EOFError: a file could not be read.
    """
    manifest, config_reasons = inspect_manifest(_read_config(config))
    if is_foreign(config_reasons):
        return tuple(config_reasons)
    with weights.open("rb") as file:
        header, weights_reasons = read_header(file)
    pairs = pair_tensors(header, weights_reasons) if header else []
    declared = _declare(pairs, manifest, PATTERN_SECONDS, weights_reasons)
    weights_reasons += _check_ranks(pairs, declared, config_reasons)
    return grouped(reason for reason in config_reasons + weights_reasons if reason.code not in _SERVER_DECIDES)


def is_foreign(reasons: list[Reason]) -> bool:
    """Return whether the config is not PEFT's. The tensors are then another tool's too."""
    return any(reason.code == "not_peft_config" for reason in reasons)


def _read_config(config: Path) -> bytes:
    with config.open("rb") as file:
        # One byte above the limit is enough to refuse the file.
        return file.read(MAX_CONFIG_BYTES + 1)


def _check_places(pairs: list[Pair], geometry: BaseGeometry, manifest: Manifest | None, base_name: str) -> list[Reason]:
    """Check each pair's layer and shapes.

    An adapter that fits another base throughout gets one ``wrong_base`` reason in place of those.
    """
    misfits = [reason for pair in pairs for reason in check_pair(pair, geometry)]
    trained_on = manifest.trained_on if manifest else ""
    other = wrong_base(pairs, geometry, trained_on=trained_on, base_name=base_name)
    if other is None:
        return misfits
    return [other, *(reason for reason in misfits if reason.code not in {"shape_mismatch", "layer_out_of_range"})]


def _check_declared(
    pairs: list[Pair], manifest: Manifest, declared: Mapping[str, Declared], reasons: list[Reason]
) -> list[Reason]:
    declared_pairs = [pair for pair in pairs if pair.module in declared]
    undeclared = [
        reason for pair in declared_pairs for reason in check_declared(pair, declared[pair.module], manifest.layers)
    ]
    return undeclared + _check_ranks(declared_pairs, declared, reasons)


def _check_ranks(pairs: list[Pair], declared: Mapping[str, Declared], reasons: list[Reason]) -> list[Reason]:
    if not declares_ranks(reasons):
        return []
    declared_pairs = [pair for pair in pairs if pair.module in declared]
    return [reason for pair in declared_pairs for reason in check_rank(pair, declared[pair.module].rank)]


def _declare(
    pairs: list[Pair], manifest: Manifest | None, seconds: float, reasons: list[Reason]
) -> dict[str, Declared]:
    """Evaluate the manifest for each pair's module.

    If its regular expressions are invalid or too slow, append a reason and return nothing.
    """
    if manifest is None:
        return {}
    try:
        with cpu_limit(seconds):
            return {pair.module: manifest.declare(pair.module) for pair in pairs}
    except TooSlow:
        found = f"regular expressions that take more than {seconds:g} s"
        reasons.append(Reason("unsafe_pattern", CONFIG_FILE, found, "names of modules, or expressions that are quick"))
    except InvalidPattern as error:
        reasons.append(Reason("invalid_pattern", CONFIG_FILE, show(error.text), "a regular expression of Python's"))
    return {}


def _scalings(pairs: list[Pair], declared: Mapping[str, Declared]) -> dict[str, float]:
    """Return the engine's scaling factor by the name of each lora_B."""
    return {pair.b.name: declared[pair.module].scaling for pair in pairs if pair.b and pair.module in declared}


def _summarise(upload: Accepted) -> Summary:
    tensors = [tensor for pair in upload.pairs for tensor in (pair.a, pair.b) if tensor]
    return Summary(
        rank=max(declared.rank for declared in upload.declared.values()),
        alpha=upload.manifest.alpha,
        target_modules=tuple(dict.fromkeys(pair.kind for pair in upload.pairs)),
        parameters=sum(tensor.elements for tensor in tensors),
        dtype="+".join(sorted({tensor.dtype for tensor in tensors})),
        modules=len(upload.pairs),
        saved_heads=tuple(tensor.name for tensor in upload.header.tensors if is_saved_head(tensor.name)),
    )


def main() -> None:
    """Answer one request from standard input under the resource limits that it names."""
    request = json.load(sys.stdin)
    limits = {name: request[name] for name in ("cpu_seconds", "address_bytes", "file_bytes")}
    confine(**limits)
    config, weights = Path(request["config"]), Path(request["weights"])
    geometry, rank = BaseGeometry(**request["geometry"]), request["max_lora_rank"]
    options: dict[str, Any] = {name: request[name] for name in ("head", "base_name", "whole_bytes")}
    normal, base = (None if request[name] is None else Path(request[name]) for name in ("normal", "base"))
    try:
        verdict = validate(config, weights, geometry, rank, normal=normal, base=base, **options)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        json.dump({"errno": error.errno}, sys.stdout)
    else:
        json.dump(dataclasses.asdict(verdict), sys.stdout)


def read_verdict(answer: dict[str, Any]) -> Verdict:
    """Parse the verdict that :func:`main` wrote."""
    summary = answer["summary"]
    if summary is not None:
        summary = Summary(**summary | {name: tuple(summary[name]) for name in ("target_modules", "saved_heads")})
    reasons, warnings = (tuple(Reason.read(reason) for reason in answer[name]) for name in ("reasons", "warnings"))
    return Verdict(summary, reasons, warnings, tuple(answer["rewritten"]))


if __name__ == "__main__":
    main()
