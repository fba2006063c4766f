"""Check an adapter's tensors against its manifest and the base.

vLLM finds a tensor's module by its name, pads small tensors with zeros and skips tensors that it cannot place. An
adapter of q_proj without k_proj or v_proj is served as PEFT serves it, although the engine computes the three at once
(``PackedLoRALayerWeights.pack``). A pair without its lora_A or lora_B is refused, because it would add nothing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from adapters.errors import Reason
from adapters.foreign import known_name
from adapters.geometry import ATTENTION_MODULES, HEAD_MODULE, LINEAR_MODULES, MLP_MODULES, BaseGeometry
from adapters.manifest import Declared, Manifest
from adapters.weights import WEIGHTS_FILE, Header, Tensor

#: Prefix that PEFT puts before a module's name. Some tools omit it. A model wrapped twice has it twice.
PREFIX = "base_model.model."
_MODULE = (
    r"model\.layers\.(?P<layer>0|[1-9][0-9]{0,5})\."
    rf"(?:self_attn\.(?:{'|'.join(ATTENTION_MODULES)})|mlp\.(?:{'|'.join(MLP_MODULES)}))|{HEAD_MODULE}"
)
_TENSOR = re.compile(
    rf"(?P<prefix>(?:{re.escape(PREFIX)}){{0,2}})(?P<module>{_MODULE})\.lora_(?P<side>[AB])\.weight", re.ASCII
)
_SAVED_HEAD = re.compile(rf"(?:{re.escape(PREFIX)}){{0,2}}{HEAD_MODULE}\.base_layer\.weight", re.ASCII)
_TENSOR_WORDS = "base_model.model.model.layers.N.self_attn|mlp.MODULE.lora_A|lora_B.weight"
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|lm_head)(?:\.|$)")
_EMBED_TOKENS = re.compile(r"(?:^|\.)embed_tokens(?:\.|$)")
_FULL_NAME = re.compile(_MODULE, re.ASCII)

HEAD_SETTING = "TENORA_ENGINE__LORA_HEAD"
_EMBEDDING_WORDS = (
    "adapters without embed_tokens: train again without it in target_modules and modules_to_save, "
    "or merge the adapter into the base and serve that as the base"
)


def is_full_name(module: str) -> bool:
    """Return whether this is the full name of a layer that adapters may change."""
    return _FULL_NAME.fullmatch(module) is not None


def is_saved_head(name: str) -> bool:
    """Return whether a tensor is a full copy of the head, saved with a LoRA of it: see :mod:`adapters.saved_head`."""
    return _SAVED_HEAD.fullmatch(name) is not None


@dataclass(slots=True)
class Pair:
    """The two tensors of one module. In a complete pair neither is None.

    Attributes:
        module: name in the base, e.g. ``model.layers.0.self_attn.q_proj``.
        layer: index of its block; None for the head.
        a, b: lora_A [rank, inputs] and lora_B [outputs, rank].
    """

    module: str
    layer: int | None
    a: Tensor | None = None
    b: Tensor | None = None

    @property
    def kind(self) -> str:
        return self.module.rpartition(".")[2]


def pair_tensors(header: Header, reasons: list[Reason]) -> list[Pair]:
    """Group the tensors by module and append a reason for each tensor that has no place in a Llama.

    Saved heads are skipped.
    """
    pairs: dict[str, Pair] = {}
    prefixes: set[str] = set()
    for tensor in header.tensors:
        if is_saved_head(tensor.name):
            continue
        match = _TENSOR.fullmatch(tensor.name)
        if match is None:
            reasons.append(misplaced(tensor.name))
            continue
        prefixes.add(match["prefix"])
        layer = None if match["layer"] is None else int(match["layer"])
        pair = pairs.setdefault(match["module"], Pair(match["module"], layer))
        if match["side"] == "A":
            pair.a = tensor
        else:
            pair.b = tensor
    if not header.tensors:
        reasons.append(Reason("no_tensors", WEIGHTS_FILE, "no tensor", "at least one pair of lora_A and lora_B"))
    if len(prefixes) > 1:
        # With two prefixes, one module could occur twice.
        found = f"names with the prefixes {' and '.join(map(repr, sorted(prefixes)))}"
        sentence = f"{WEIGHTS_FILE} has {found}. Save it again with `model.save_pretrained(FOLDER)`, which writes one."
        reasons.append(Reason("tensor_name", WEIGHTS_FILE, found, f"{PREFIX!r} in all names", sentence))
    return sorted(pairs.values(), key=_place)


def standard_names(pairs: Iterable[Pair]) -> dict[str, str]:
    """Map each tensor's name to the name that PEFT gives it."""
    return {
        tensor.name: f"{PREFIX}{pair.module}.lora_{side}.weight"
        for pair in pairs
        for side, tensor in (("A", pair.a), ("B", pair.b))
        if tensor
    }


def _place(pair: Pair) -> tuple[bool, int, int]:
    """Sort key: by block, then by the order of modules in a block; the head last."""
    if pair.layer is None:
        return True, 0, 0
    return False, pair.layer, LINEAR_MODULES.index(pair.kind)


def misplaced(name: str) -> Reason:
    """Return the reason against a tensor that is not a LoRA of a linear layer."""
    if reason := known_name(name):
        return reason
    if _EMBED_TOKENS.search(name):
        return Reason("embedding_not_served", name, "a tensor of an embedding", _EMBEDDING_WORDS)
    if _EMBEDDING.search(name):
        allowed = f"adapters of {', '.join(LINEAR_MODULES)} only: the head's own weights are the base's"
        return Reason("embedding_not_served", name, "a tensor of the head", allowed)
    return Reason("tensor_name", name, name, _TENSOR_WORDS)


def check_head(pairs: list[Pair], manifest: Manifest | None, geometry: BaseGeometry, *, served: bool) -> list[Reason]:
    """Check that the head is either not adapted or served as PEFT serves it.

    Args:
        served: whether the engine's slots have room for the head.
    """
    has_tensors = any(pair.layer is None for pair in pairs)
    named = manifest is not None and HEAD_MODULE in (manifest.targets or ())
    reasons = []
    if not served and (has_tensors or named):
        code, field = ("head_not_served", HEAD_MODULE) if has_tensors else ("unsupported_target", "target_modules")
        allowed = f"adapters without {HEAD_MODULE}, unless an operator sets {HEAD_SETTING}"
        reasons.append(Reason(code, field, HEAD_MODULE, allowed))
    if has_tensors and geometry.tied and manifest is not None and manifest.ties_weights:
        allowed = f"false: this base ties {HEAD_MODULE} to embed_tokens, which would be adapted too"
        reasons.append(Reason("unsupported_feature", "ensure_weight_tying", "true", allowed))
    if manifest is not None and any(_EMBED_TOKENS.search(target) for target in manifest.targets or ()):
        reasons.append(Reason("unsupported_target", "target_modules", "embed_tokens", _EMBEDDING_WORDS))
    return reasons


def check_pair(pair: Pair, geometry: BaseGeometry) -> list[Reason]:
    """Check that the pair is complete and fits its layer: existing layer, right shapes, equal ranks."""
    reasons = []
    if pair.layer is not None and pair.layer >= geometry.layers:
        reasons.append(Reason("layer_out_of_range", pair.module, f"layer {pair.layer}", f"0 to {geometry.layers - 1}"))
    inputs, outputs = geometry.dims_of(pair.kind)
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


def check_rank(pair: Pair, rank: int) -> list[Reason]:
    """Check that the pair has the rank that the manifest declares."""
    if all(found == rank for found in _ranks(pair)):
        return []
    found = f"rank {' and '.join(map(str, _ranks(pair)))}"
    return [Reason("rank_mismatch", pair.module, found, f"{rank}, as adapter_config.json declares")]


def check_declared(pair: Pair, declared: Declared, layers: frozenset[int] | None) -> list[Reason]:
    """Check that the manifest declares the pair's module as adapted.

    Args:
        layers: indices of the only adapted layers; None for all layers.
    """
    reasons = []
    if not declared.targeted:
        reasons.append(Reason("not_in_target_modules", pair.module, "tensors", "none: no entry of target_modules"))
    if declared.excluded:
        reasons.append(Reason("not_in_target_modules", pair.module, "tensors", "none: exclude_modules names it"))
    if layers is not None and pair.layer not in layers:
        allowed = "none: layers_to_transform leaves the layer out"
        reasons.append(Reason("not_in_target_modules", pair.module, "tensors", allowed))
    return reasons


def unused_targets(pairs: list[Pair], manifest: Manifest) -> list[Reason]:
    """Return a warning for each listed entry of ``target_modules`` that has no tensors."""
    used = {target for pair in pairs for target in manifest.targets_of(pair.module)}
    allowed = "modules that have tensors; it changes nothing"
    return [
        Reason("target_without_tensors", "target_modules", repr(target), allowed)
        for target in sorted((manifest.targets or frozenset()) - used)
    ]


def check_largest_rank(pairs: list[Pair], manifest: Manifest | None, max_lora_rank: int) -> list[Reason]:
    """Check that every rank, declared or found, is within the engine's limit."""
    ranks = [rank for pair in pairs for rank in _ranks(pair)]
    largest = max([*ranks, manifest.largest_rank if manifest else 0], default=0)
    if largest <= max_lora_rank:
        return []
    return [Reason("rank_too_large", "r", f"rank {largest}", f"at most {max_lora_rank}, the engine's max_lora_rank")]


def _ranks(pair: Pair) -> list[int]:
    """Return the ranks of the pair's two-dimensional tensors, lora_A first."""
    ranks = []
    if pair.a and len(pair.a.shape) == 2:
        ranks.append(pair.a.shape[0])
    if pair.b and len(pair.b.shape) == 2:
        ranks.append(pair.b.shape[1])
    return ranks
