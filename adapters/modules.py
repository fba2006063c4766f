"""The tensors of an adapter against its manifest and the base: does each pair fit its place?

vLLM finds a tensor's place by its name, pads what is too small with zeros and skips what it cannot place; an adapter
that changes q_proj but not k_proj or v_proj is served as PEFT serves it, although the engine computes the three at
once (``PackedLoRALayerWeights.pack``). A pair that lacks its lora_A or lora_B is not: it would add nothing.
"""

import re
from dataclasses import dataclass

from adapters.errors import Reason
from adapters.foreign import known_name
from adapters.geometry import ATTENTION_MODULES, LINEAR_MODULES, MLP_MODULES, BaseGeometry
from adapters.manifest import Manifest
from adapters.weights import WEIGHTS_FILE, Header, Tensor

_TENSOR = re.compile(
    r"base_model\.model\.(?P<module>model\.layers\.(?P<layer>0|[1-9][0-9]{0,5})\."
    rf"(?:self_attn\.(?:{'|'.join(ATTENTION_MODULES)})|mlp\.(?:{'|'.join(MLP_MODULES)})))"
    r"\.lora_(?P<side>[AB])\.weight",
    re.ASCII,
)
_TENSOR_WORDS = "base_model.model.model.layers.N.self_attn|mlp.MODULE.lora_A|lora_B.weight"
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|lm_head)(?:\.|$)")


@dataclass(slots=True)
class Pair:
    """The two tensors of one module; in a whole pair neither is None.

    Attributes:
        module: name in the base, e.g. ``model.layers.0.self_attn.q_proj``.
        layer: index of its block.
        a, b: lora_A [rank, inputs] and lora_B [outputs, rank].
    """

    module: str
    layer: int
    a: Tensor | None = None
    b: Tensor | None = None

    @property
    def kind(self) -> str:
        return self.module.rpartition(".")[2]


def pair_tensors(header: Header, reasons: list[Reason]) -> list[Pair]:
    """Group the tensors by module; a tensor that has no place in a Llama becomes a reason."""
    pairs: dict[str, Pair] = {}
    for tensor in header.tensors:
        match = _TENSOR.fullmatch(tensor.name)
        if match is None:
            reasons.append(_misplaced(tensor.name))
            continue
        pair = pairs.setdefault(match["module"], Pair(match["module"], int(match["layer"])))
        if match["side"] == "A":
            pair.a = tensor
        else:
            pair.b = tensor
    if not header.tensors:
        reasons.append(Reason("no_tensors", WEIGHTS_FILE, "no tensor", "at least one pair of lora_A and lora_B"))
    return sorted(pairs.values(), key=lambda pair: (pair.layer, LINEAR_MODULES.index(pair.kind)))


def _misplaced(name: str) -> Reason:
    if known := known_name(name):
        return known
    if _EMBEDDING.search(name):
        allowed = f"adapters of {', '.join(LINEAR_MODULES)} only: the embeddings and the head are the base's"
        return Reason("embedding_not_served", name, "a tensor of an embedding or of the head", allowed)
    return Reason("tensor_name", name, name, _TENSOR_WORDS)


def check_pair(pair: Pair, geometry: BaseGeometry) -> list[Reason]:
    """Is the pair whole, in a layer that the base has, of the right shapes, and of one rank?"""
    reasons = []
    if pair.layer >= geometry.layers:
        reasons.append(Reason("layer_out_of_range", pair.module, f"layer {pair.layer}", f"0 to {geometry.layers - 1}"))
    inputs, outputs = geometry.dims[pair.kind]
    a, b = pair.a, pair.b
    if a is None or b is None:
        missing = "lora_A" if a is None else "lora_B"
        reasons.append(Reason("incomplete_pair", pair.module, f"no {missing}", "lora_A and lora_B"))
    if a and (len(a.shape) != 2 or a.shape[1] != inputs):
        reasons.append(Reason("shape_mismatch", a.name, f"shape {list(a.shape)}", f"[rank, {inputs}]"))
    if b and (len(b.shape) != 2 or b.shape[0] != outputs):
        reasons.append(Reason("shape_mismatch", b.name, f"shape {list(b.shape)}", f"[{outputs}, rank]"))
    ranks = _ranks(pair)
    if len(ranks) == 2 and ranks[0] != ranks[1]:
        found = f"rank {ranks[0]} in lora_A, {ranks[1]} in lora_B"
        reasons.append(Reason("rank_mismatch", pair.module, found, "the same rank in both"))
    return reasons


def check_rank(pair: Pair, manifest: Manifest) -> list[Reason]:
    """Has the pair the rank that the manifest declares?"""
    declared = manifest.rank_of(pair.module)
    if all(rank == declared for rank in _ranks(pair)):
        return []
    found = f"rank {' and '.join(map(str, _ranks(pair)))}"
    return [Reason("rank_mismatch", pair.module, found, f"{declared}, as adapter_config.json declares")]


def check_declared(pair: Pair, manifest: Manifest) -> list[Reason]:
    """Does the manifest declare that the pair's module is adapted at all?"""
    reasons = []
    if manifest.targets is not None and not manifest.targets_of(pair.module):
        reasons.append(Reason("not_in_target_modules", pair.module, "tensors", "none: no entry of target_modules"))
    if manifest.excludes(pair.module):
        reasons.append(Reason("not_in_target_modules", pair.module, "tensors", "none: exclude_modules names it"))
    if manifest.layers is not None and pair.layer not in manifest.layers:
        allowed = "none: layers_to_transform leaves the layer out"
        reasons.append(Reason("not_in_target_modules", pair.module, "tensors", allowed))
    return reasons


def check_targets(pairs: list[Pair], manifest: Manifest) -> list[Reason]:
    """Has each entry of ``target_modules`` at least one tensor?"""
    used = {target for pair in pairs for target in manifest.targets_of(pair.module)}
    return [
        Reason("target_without_tensors", "target_modules", repr(target), "modules that have tensors")
        for target in sorted((manifest.targets or frozenset()) - used)
    ]


def check_largest_rank(pairs: list[Pair], manifest: Manifest | None, max_lora_rank: int) -> list[Reason]:
    """Is every rank, declared or found, within the engine's limit?"""
    found = [rank for pair in pairs for rank in _ranks(pair)]
    largest = max([*found, manifest.largest_rank if manifest else 0], default=0)
    if largest <= max_lora_rank:
        return []
    return [Reason("rank_too_large", "r", f"rank {largest}", f"at most {max_lora_rank}, the engine's max_lora_rank")]


def _ranks(pair: Pair) -> list[int]:
    """The ranks of the pair's well-formed tensors, lora_A's first."""
    ranks = []
    if pair.a and len(pair.a.shape) == 2:
        ranks.append(pair.a.shape[0])
    if pair.b and len(pair.b.shape) == 2:
        ranks.append(pair.b.shape[1])
    return ranks
