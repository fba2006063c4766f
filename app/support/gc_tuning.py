"""Garbage collector settings of a long-lived server process."""

import gc

#: Thresholds of ``gc.set_threshold`` for the three generations, in objects, young and middle collections.
#: See docs/decisions/0031-garbage-collector-thresholds.md.
_YOUNG, _MIDDLE, _ALL = 5_000, 2, 100


def collect_rarely() -> None:
    """Freeze all existing objects and collect later ones rarely."""
    # torch and vLLM keep very many objects alive. A full collection over them would stall every stream.
    gc.collect()
    gc.freeze()
    # Reference counting frees the objects of a request; only cycles need the collector.
    gc.set_threshold(_YOUNG, _MIDDLE, _ALL)
