"""Identify the base that an adapter was trained on, by tensor shapes and by the name in its config."""

import re
from collections.abc import Iterable

from adapters.errors import Reason
from adapters.geometry import BaseGeometry
from adapters.modules import Pair

# Path of a model in the Hub's cache: .../models--meta-llama--Llama-3.1-8B/snapshots/<commit>.
_CACHED = re.compile(r"models--(?:[^/]+?--)?([^/]+)/snapshots(?:/|$)")
_NO_WORDS = re.compile(r"[\W_]+")


def wrong_base(pairs: Iterable[Pair], geometry: BaseGeometry, *, trained_on: str, base_name: str) -> Reason | None:
    """Return one ``wrong_base`` reason if the tensors consistently fit another base.

    It replaces separate shape reasons for the tensors.

    Args:
        trained_on: base that the config names; empty if it names none.
        base_name: name of this server's base.

    Returns:
        The reason. None if the shapes fit this base, or if modules of one kind differ in their sizes.
    """
    dimensions = _dimensions(pairs)
    misfits = [kind for kind, dims in dimensions.items() if _differ(dims, geometry.dims_of(kind))]
    if not misfits or any(len(sizes) > 1 for dims in dimensions.values() for sizes in dims):
        return None
    hidden = _hidden(dimensions)
    theirs, ours = f"hidden {hidden or 'unknown'}", f"hidden {geometry.hidden}"
    if hidden in (None, geometry.hidden):
        # The width does not distinguish the bases, so also show the first module whose dimensions differ.
        kind = misfits[0]
        theirs += f", {kind} {' to '.join(_shown(sizes) for sizes in dimensions[kind])}"
        ours += f", {kind} {' to '.join(map(str, geometry.dims_of(kind)))}"
    sentence = (
        f"The adapter was trained for {trained_on or 'another base'} ({theirs}), but this server serves {base_name} "
        f"({ours}). Train it on this base, or upload it to a server of the other base."
    )
    return Reason("wrong_base", "base_model_name_or_path", f"{trained_on or 'no name'} ({theirs})", ours, sentence)


#: Input sizes and output sizes found, by kind of module.
_Found = dict[str, tuple[frozenset[int], frozenset[int]]]


def _dimensions(pairs: Iterable[Pair]) -> _Found:
    sizes: dict[str, tuple[set[int], set[int]]] = {}
    for pair in pairs:
        inputs, outputs = sizes.setdefault(pair.kind, (set(), set()))
        if pair.a and len(pair.a.shape) == 2:
            inputs.add(pair.a.shape[1])
        if pair.b and len(pair.b.shape) == 2:
            outputs.add(pair.b.shape[0])
    return {kind: (frozenset(inputs), frozenset(outputs)) for kind, (inputs, outputs) in sizes.items()}


def _differ(dims: tuple[frozenset[int], frozenset[int]], base_dims: tuple[int, int]) -> bool:
    return any(sizes not in (frozenset(), {own}) for sizes, own in zip(dims, base_dims, strict=True))


def _hidden(dimensions: _Found) -> int | None:
    """Return the width of the residual stream if all modules agree on it, else None."""
    sizes: set[int] = set()
    for kind, (inputs, outputs) in dimensions.items():
        # o_proj and down_proj write to the residual stream. All other modules read from it.
        sizes |= outputs if kind in {"o_proj", "down_proj"} else inputs
    return sizes.pop() if len(sizes) == 1 else None


def _shown(sizes: frozenset[int]) -> str:
    return str(next(iter(sizes), "?"))


def same_base(trained_on: str, names: Iterable[str]) -> bool:
    """Return whether a base's name or path matches one of the names.

    Organisation, folder, case and separators are ignored.
    """
    return _essence(trained_on) in {_essence(name) for name in names}


def _essence(name: str) -> str:
    path = name.replace("\\", "/").rstrip("/")
    cached = _CACHED.search(path)
    last = cached[1] if cached else path.rpartition("/")[2]
    return _NO_WORDS.sub("", last.casefold())
