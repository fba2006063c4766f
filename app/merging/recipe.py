"""Merge recipes: validate them, and find every reason why PEFT could not merge, or would merge something else.

The rules are those of PEFT 0.21's ``LoraModel.add_weighted_adapter``. It takes the result's configuration from the
first source, except ``r``, ``lora_alpha`` and ``target_modules``. All other settings that select the adapted modules
must therefore be equal in all sources. Otherwise PEFT would silently drop tensors of the other sources.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from adapters.errors import InvalidName, Reason
from adapters.geometry import HEAD_MODULE, LINEAR_MODULES, BaseGeometry
from adapters.identity import parse_model_name
from adapters.manifest import Manifest
from adapters.strict_json import show
from app.domain.errors import MergeRejected

MIN_SOURCES, MAX_SOURCES = 2, 8
MAX_WEIGHT = 100.0
MAX_SEED = 2**32 - 1


class Method(StrEnum):
    """PEFT's ``combination_type``."""

    LINEAR = "linear"
    CAT = "cat"
    SVD = "svd"
    TIES = "ties"
    DARE_LINEAR = "dare_linear"
    DARE_TIES = "dare_ties"
    MAGNITUDE_PRUNE = "magnitude_prune"


#: Methods that choose at random which values they keep.
RANDOM_METHODS = frozenset({Method.DARE_LINEAR, Method.DARE_TIES})
#: Methods that keep only the fraction ``density`` of the values.
_PRUNING = RANDOM_METHODS | {Method.TIES, Method.MAGNITUDE_PRUNE}
_ELECTING = frozenset({Method.TIES, Method.DARE_TIES})
#: Methods that add the matrices themselves, which must have the same rank.
_SAME_RANK = _PRUNING | {Method.LINEAR}
_SIGN_METHODS = ("total", "frequency")

#: Field -> methods that use it. With any other method the field is refused rather than ignored.
_FIELDS = {
    "density": _PRUNING,
    "majority_sign_method": _ELECTING,
    "svd_rank": frozenset({Method.SVD}),
    "svd_full_matrices": frozenset({Method.SVD}),
    "seed": RANDOM_METHODS,
}
_VERSION = re.compile(r"[^@/]+@[^@/]+", re.ASCII)
_VERSION_WORDS = "ADAPTER@NUMBER, a version of this tenant"


@dataclass(frozen=True, slots=True)
class Source:
    """One version of the tenant, with its weight."""

    adapter: str
    number: int
    weight: float

    @property
    def version(self) -> str:
        return f"{self.adapter}@{self.number}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A validated merge. Fields that the method does not use are None.

    Attributes:
        density: fraction of the values that is kept, above 0, at most 1.
        svd_rank: rank of the result; None: the largest of the sources.
        svd_full_matrices: PEFT's argument. True costs LAPACK much more time.
        seed: seed of torch's random numbers, set right before PEFT's call; None: not chosen yet.
    """

    sources: tuple[Source, ...]
    method: Method
    density: float | None = None
    majority_sign_method: str | None = None
    svd_rank: int | None = None
    svd_full_matrices: bool | None = None
    seed: int | None = None

    def arguments(self) -> dict[str, Any]:
        """Build the keyword arguments of ``add_weighted_adapter``, without the adapters' names."""
        options = {
            "density": self.density,
            "majority_sign_method": self.majority_sign_method,
            "svd_rank": self.svd_rank,
            "svd_full_matrices": self.svd_full_matrices,
        }
        chosen = {name: value for name, value in options.items() if value is not None}
        weights = [source.weight for source in self.sources]
        return {"weights": weights, "combination_type": self.method.value} | chosen

    def provenance(self, digests: Sequence[str]) -> dict[str, Any]:
        """Build the recipe's form for the version's provenance.

        Args:
            digests: content digests of the sources, in the recipe's order.
        """
        sources = [
            {"version": source.version, "digest": f"sha256:{digest}", "weight": source.weight}
            for source, digest in zip(self.sources, digests, strict=True)
        ]
        options = {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}
        return {"method": self.method.value, "sources": sources} | options


def read_recipe(raw: Mapping[str, Any]) -> Recipe:
    """Validate a recipe without its sources.

    Args:
        raw: the recipe, with the types of the API's schema; None counts as absent.

    Raises:
        MergeRejected: with every reason.
    """
    reasons: list[Reason] = []
    method = _method(raw.get("method"), reasons)
    sources = _sources(raw.get("sources") or [], reasons)
    if method is not None:
        for field, methods in _FIELDS.items():
            if raw.get(field) is not None and method not in methods:
                allowed = f"nothing with {method.value}; it is for {_words(methods)}"
                sentence = f"The method {method.value} does not use {field}. Remove it, or use {_words(methods)}."
                _refuse(reasons, field, raw[field], allowed, sentence)
        if method in _PRUNING:
            _check_density(raw.get("density"), reasons)
    _check_options(raw, reasons)
    if reasons or method is None:
        raise MergeRejected(tuple(reasons))
    return Recipe(sources=sources, method=method, **{field: raw.get(field) for field in _FIELDS})


def check_sources(
    recipe: Recipe, manifests: Sequence[Manifest], geometry: BaseGeometry, max_lora_rank: int
) -> list[Reason]:
    """List every reason why these versions cannot be merged with this recipe on this base.

    Args:
        manifests: manifests of the sources, in the recipe's order.
    """
    reasons: list[Reason] = []
    _check_modules(recipe, manifests, reasons)
    ranks = [sorted({manifest.rank, *(rank for _, rank in manifest.rank_patterns)}) for manifest in manifests]
    if recipe.method in _SAME_RANK and len({rank for source_ranks in ranks for rank in source_ranks}) > 1:
        found, allowed = _each(recipe, ranks), f"one rank in all modules of all sources with {recipe.method.value}"
        sentence = f"The ranks are {found}. The method {recipe.method.value} needs one rank: use cat or svd instead."
        reasons.append(Reason("rank_mismatch", "sources", found, allowed, sentence))
    largest = [source_ranks[-1] for source_ranks in ranks]
    rank = sum(largest) if recipe.method is Method.CAT else recipe.svd_rank or max(largest)
    if rank > max_lora_rank:
        found, allowed = f"{rank} as the result's rank", f"{max_lora_rank}, the engine's max_lora_rank"
        advice = "Set a smaller svd_rank." if recipe.method is Method.SVD else "Merge versions of smaller rank."
        sentence = f"The result would have rank {rank}; the engine's max_lora_rank is {max_lora_rank}. {advice}"
        reasons.append(Reason("rank_too_large", "sources", found, allowed, sentence))
    if recipe.method is Method.SVD:
        smallest = _smallest_dimension(manifests, geometry)
        if rank > smallest:
            _refuse(reasons, "svd_rank", rank, f"at most {smallest}, the smallest dimension of the adapted modules")
    return reasons


def _method(name: object, reasons: list[Reason]) -> Method | None:
    if name in set(Method):
        return Method(str(name))
    _refuse(reasons, "method", name, _words(Method))
    return None


def _sources(raw: Sequence[Mapping[str, Any]], reasons: list[Reason]) -> tuple[Source, ...]:
    if not MIN_SOURCES <= len(raw) <= MAX_SOURCES:
        sentence = f"sources names {len(raw)} versions, but must name {MIN_SOURCES} to {MAX_SOURCES}."
        _refuse(reasons, "sources", len(raw), f"{MIN_SOURCES} to {MAX_SOURCES} versions", sentence)
        return ()
    sources: dict[str, Source] = {}
    for index, item in enumerate(raw):
        version, weight = str(item.get("version")), item.get("weight")
        # NaN fails this comparison too.
        if not isinstance(weight, int | float) or not abs(weight) <= MAX_WEIGHT:
            _refuse(reasons, f"sources.{index}.weight", weight, f"a number from -{MAX_WEIGHT:g} to {MAX_WEIGHT:g}")
            weight = 0.0
        if (source := _source(version, float(weight))) is None:
            _refuse(reasons, f"sources.{index}.version", version, _VERSION_WORDS)
        elif source.version in sources:
            sentence = f"sources.{index}.version names {source.version} again. Name each version once."
            _refuse(reasons, f"sources.{index}.version", version, "each version once", sentence)
        else:
            sources[source.version] = source
    return tuple(sources.values())


def _source(version: str, weight: float) -> Source | None:
    if not _VERSION.fullmatch(version):
        return None
    try:
        name = parse_model_name(version)
    except InvalidName:
        return None
    return None if name.number is None else Source(name.adapter, name.number, weight)


def _check_density(density: float | None, reasons: list[Reason]) -> None:
    # NaN fails this comparison too.
    if density is None or not 0 < density <= 1:
        _refuse(reasons, "density", density, "a number above 0, at most 1")


def _check_options(raw: Mapping[str, Any], reasons: list[Reason]) -> None:
    sign, rank, seed = raw.get("majority_sign_method"), raw.get("svd_rank"), raw.get("seed")
    if sign is not None and sign not in _SIGN_METHODS:
        _refuse(reasons, "majority_sign_method", sign, " or ".join(_SIGN_METHODS))
    if rank is not None and rank < 1:
        _refuse(reasons, "svd_rank", rank, "an integer from 1")
    if seed is not None and not 0 <= seed <= MAX_SEED:
        _refuse(reasons, "seed", seed, f"an integer from 0 to {MAX_SEED}")


def _check_modules(recipe: Recipe, manifests: Sequence[Manifest], reasons: list[Reason]) -> None:
    kinds = ["a regular expression" if manifest.targets is None else "a list" for manifest in manifests]
    if len(set(kinds)) > 1:
        found, allowed = _each(recipe, kinds), "lists in all sources, or regular expressions in all"
        sentence = f"target_modules is {found}. Merge versions that all have lists, or all have regular expressions."
        reasons.append(Reason("targets_mismatch", "target_modules", found, allowed, sentence))
    for field, values in (
        ("layers_to_transform", [manifest.layers for manifest in manifests]),
        ("exclude_modules", [manifest.excluded for manifest in manifests]),
    ):
        if len(set(values)) > 1:
            found = f"not the same in {_versions(recipe)}"
            sentence = f"{field} is {found}. Merge versions with the same {field}."
            reasons.append(Reason("targets_mismatch", field, found, "the same in all", sentence))


def _smallest_dimension(manifests: Sequence[Manifest], geometry: BaseGeometry) -> int:
    kinds = {
        target.rpartition(".")[2]
        for manifest in manifests
        for target in (LINEAR_MODULES if manifest.targets is None else manifest.targets)
    }
    # A list may name modules that Llama does not have.
    return min(min(geometry.dims_of(kind)) for kind in kinds if kind in (*LINEAR_MODULES, HEAD_MODULE))


def _refuse(reasons: list[Reason], field: str, value: object, allowed: str, sentence: str = "") -> None:
    """Add a reason. Without ``sentence`` it gets the default sentence about the value, or about a missing one."""
    if value is None:
        sentence = sentence or f"{field} is missing. It must be {allowed}."
    reasons.append(Reason("invalid_value", field, "nothing" if value is None else show(value), allowed, sentence))


def _each(recipe: Recipe, values: Iterable[object]) -> str:
    return ", ".join(f"{value} in {source.version}" for source, value in zip(recipe.sources, values, strict=True))


def _versions(recipe: Recipe) -> str:
    return ", ".join(source.version for source in recipe.sources)


def _words(methods: Iterable[Method]) -> str:
    return ", ".join(method.value for method in Method if method in set(methods))
