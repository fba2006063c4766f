"""Every reason why an upload cannot be served on this base, all at once.

``python -m adapters.validation`` is the child process of :mod:`adapters.sandbox`: one JSON request on its standard
input, one JSON verdict on its standard output.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from adapters.confinement import confine
from adapters.errors import AdapterRejected, Reason
from adapters.geometry import BaseGeometry
from adapters.manifest import CONFIG_FILE, MAX_CONFIG_BYTES, Manifest, read_manifest
from adapters.modules import Pair, check_declared, check_largest_rank, check_pair, check_targets, pair_tensors
from adapters.weights import Header, find_nonfinite, read_header

MAX_REASONS = 100


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
        reasons: at most 101; the last then tells how many more there are.
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


def validate(config: Path, weights: Path, geometry: BaseGeometry, max_lora_rank: int) -> Verdict:
    """Check an upload's two files. Both are hostile until proven otherwise: see :mod:`adapters.sandbox`.

    Raises:
        OSError, EOFError: a file could not be read.
    """
    with config.open("rb") as file:
        # One byte more than allowed is enough to be refused.
        manifest, reasons = read_manifest(file.read(MAX_CONFIG_BYTES + 1))
    with weights.open("rb") as file:
        header, found = read_header(file)
        reasons += found
        if header is None:
            return Verdict(None, _shorten(reasons))
        pairs = pair_tensors(header, reasons)
        reasons += check_largest_rank(pairs, manifest, max_lora_rank)
        for pair in pairs:
            reasons += check_pair(pair, geometry)
        # A file can name thousands of layers; patterns are matched for those that the base has.
        placed = [pair for pair in pairs if pair.layer < geometry.layers]
        if manifest:
            reasons += check_targets(pairs, manifest)
            for pair in placed:
                reasons += check_declared(pair, manifest)
        reasons += find_nonfinite(file, header, geometry.dtype, _scalings(placed, manifest))
    if reasons or manifest is None:
        return Verdict(None, _shorten(reasons))
    return Verdict(_summarise(pairs, manifest, header), ())


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


def _shorten(reasons: list[Reason]) -> tuple[Reason, ...]:
    if len(reasons) <= MAX_REASONS:
        return tuple(reasons)
    more = Reason("more_reasons", CONFIG_FILE, f"{len(reasons) - MAX_REASONS} more reasons", "none")
    return (*reasons[:MAX_REASONS], more)


def main() -> None:
    """Answer one request under the resource limits that it names."""
    request = json.load(sys.stdin)
    confine(cpu_seconds=request["cpu_seconds"], address_bytes=request["address_bytes"], file_bytes=0)
    geometry = BaseGeometry(**request["geometry"])
    verdict = validate(Path(request["config"]), Path(request["weights"]), geometry, request["max_lora_rank"])
    json.dump(dataclasses.asdict(verdict), sys.stdout)


def read_verdict(answer: dict[str, Any]) -> Verdict:
    """The verdict that :func:`main` wrote."""
    summary = answer["summary"]
    if summary is not None:
        summary = Summary(**summary | {"target_modules": tuple(summary["target_modules"])})
    return Verdict(summary, tuple(Reason(**reason) for reason in answer["reasons"]))


if __name__ == "__main__":
    main()
