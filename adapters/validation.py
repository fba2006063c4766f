"""Every reason why an upload cannot be served on this base, all at once.

``python -m adapters.validation`` is the child process of :mod:`adapters.sandbox`: one JSON request on its standard
input, one JSON verdict on its standard output.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from adapters.bases import wrong_base
from adapters.confinement import confine
from adapters.errors import AdapterRejected, Reason, grouped
from adapters.geometry import BaseGeometry
from adapters.manifest import MAX_CONFIG_BYTES, Manifest, declares_ranks, inspect_manifest
from adapters.modules import (
    Pair,
    check_declared,
    check_largest_rank,
    check_pair,
    check_rank,
    check_targets,
    pair_tensors,
)
from adapters.weights import Header, find_nonfinite, read_header

#: Reasons that depend on the server's settings.
_SERVER_DECIDES = frozenset({"rank_too_large", "embedding_not_served", "unsupported_target"})


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What is worth knowing of a version that can be served.

    Attributes:
        rank: the largest of its modules' ranks.
        alpha: ``lora_alpha``.
        target_modules: the linear layers it changes, in the order of a Llama block.
        parameters: number of values in its tensors.
        dtype: of its tensors, as safetensors names it; joined with ``+`` if there are several.
    """

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    parameters: int
    dtype: str


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Exactly one of the two says something: a summary, or at least one reason.

    Attributes:
        summary: None if the upload is rejected.
        reasons: one for each kind; the first says most.
    """

    summary: Summary | None
    reasons: tuple[Reason, ...]

    def accepted(self) -> Summary:
        """The summary.

        Raises:
            AdapterRejected: with the reasons.
        """
        if self.summary is None:
            raise AdapterRejected(self.reasons)
        return self.summary


def validate(
    config: Path, weights: Path, geometry: BaseGeometry, max_lora_rank: int, *, base_name: str = "this base"
) -> Verdict:
    """Check an upload's two files. Both are hostile until proven otherwise: see :mod:`adapters.sandbox`.

    Args:
        base_name: what to call the base in reasons.

    Raises:
        OSError, EOFError: a file could not be read.
    """
    manifest, reasons = read_config(config)
    if is_foreign(reasons):
        return Verdict(None, tuple(reasons))
    with weights.open("rb") as file:
        header, found = read_header(file)
        if header is None:
            return Verdict(None, grouped(reasons + found))
        pairs = pair_tensors(header, found)
        found += check_largest_rank(pairs, manifest, max_lora_rank)
        found += _check_places(pairs, geometry, manifest, base_name)
        # A file can name thousands of layers; patterns are matched for those that the base has.
        placed = [pair for pair in pairs if pair.layer < geometry.layers]
        if manifest:
            found += check_targets(pairs, manifest)
            found += [reason for pair in placed for reason in check_declared(pair, manifest)]
            found += _check_ranks(placed, manifest, reasons)
        found += find_nonfinite(file, header, geometry.dtype, _scalings(placed, manifest))
    if reasons or found or manifest is None:
        return Verdict(None, grouped(reasons + found))
    return Verdict(_summarise(pairs, manifest, header), ())


def precheck(config: Path, weights: Path) -> tuple[Reason, ...]:
    """What is wrong with the two files on whatever base: for their owner, before they are sent.

    Raises:
        OSError, EOFError: a file could not be read.
    """
    manifest, reasons = read_config(config)
    if is_foreign(reasons):
        return tuple(reasons)
    with weights.open("rb") as file:
        header, found = read_header(file)
    pairs = pair_tensors(header, found) if header else []
    if manifest:
        found += _check_ranks(pairs, manifest, reasons)
    return grouped(reason for reason in reasons + found if reason.code not in _SERVER_DECIDES)


def read_config(config: Path) -> tuple[Manifest | None, list[Reason]]:
    """As :func:`adapters.manifest.inspect_manifest` of a file.

    Raises:
        OSError
    """
    with config.open("rb") as file:
        # One byte more than allowed is enough to be refused.
        return inspect_manifest(file.read(MAX_CONFIG_BYTES + 1))


def is_foreign(reasons: list[Reason]) -> bool:
    """Whether the config is not PEFT's: then the tensors are another tool's too."""
    return any(reason.code == "not_peft_config" for reason in reasons)


def _check_places(pairs: list[Pair], geometry: BaseGeometry, manifest: Manifest | None, base_name: str) -> list[Reason]:
    """Does each pair fit its place? An adapter that fits another base throughout gets that one reason."""
    found = [reason for pair in pairs for reason in check_pair(pair, geometry)]
    trained_on = manifest.trained_on if manifest else ""
    other = wrong_base(pairs, geometry, trained_on=trained_on, base_name=base_name)
    if other is None:
        return found
    return [other, *(reason for reason in found if reason.code not in {"shape_mismatch", "layer_out_of_range"})]


def _check_ranks(pairs: list[Pair], manifest: Manifest, reasons: list[Reason]) -> list[Reason]:
    if not declares_ranks(reasons):
        return []
    return [reason for pair in pairs for reason in check_rank(pair, manifest)]


def _scalings(pairs: list[Pair], manifest: Manifest | None) -> dict[str, float]:
    """By the name of each lora_B, what the engine multiplies it with."""
    if manifest is None:
        return {}
    return {pair.b.name: manifest.scaling_of(pair.module) for pair in pairs if pair.b}


def _summarise(pairs: list[Pair], manifest: Manifest, header: Header) -> Summary:
    return Summary(
        rank=max(manifest.rank_of(pair.module) for pair in pairs),
        alpha=manifest.alpha,
        target_modules=tuple(dict.fromkeys(pair.kind for pair in pairs)),
        parameters=sum(tensor.elements for tensor in header.tensors),
        dtype="+".join(sorted({tensor.dtype for tensor in header.tensors})),
    )


def main() -> None:
    """Answer one request under the resource limits that it names."""
    request = json.load(sys.stdin)
    confine(cpu_seconds=request["cpu_seconds"], address_bytes=request["address_bytes"], file_bytes=0)
    geometry = BaseGeometry(**request["geometry"])
    config, weights = Path(request["config"]), Path(request["weights"])
    verdict = validate(config, weights, geometry, request["max_lora_rank"], base_name=request["base_name"])
    json.dump(dataclasses.asdict(verdict), sys.stdout)


def read_verdict(answer: dict[str, Any]) -> Verdict:
    """The verdict that :func:`main` wrote."""
    summary = answer["summary"]
    if summary is not None:
        summary = Summary(**summary | {"target_modules": tuple(summary["target_modules"])})
    return Verdict(summary, tuple(Reason.read(reason) for reason in answer["reasons"]))


if __name__ == "__main__":
    main()
