"""Labels of a version from the metrics of its training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: The server takes 32 labels. Some are left for the caller.
_MOST = 20
#: Metrics of the machine, not of the adapter.
_DULL = ("_runtime", "_per_second", "total_flos", "learning_rate", "grad_norm")


def metric_labels(history: Iterable[Mapping[str, Any]], step: int) -> dict[str, str]:
    """Return the last value of each metric in a Trainer's log, as labels."""
    last: dict[str, str] = {}
    for entry in history:
        for name, value in entry.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and not name.endswith(_DULL):
                last[name.replace("/", ".")] = f"{value:.6g}"
    last.pop("step", None)
    chosen = sorted(last, key=lambda name: (not name.startswith(("eval_", "train_loss", "loss", "epoch")), name))
    return {"step": str(step), **{name: last[name] for name in chosen[: _MOST - 1]}}
