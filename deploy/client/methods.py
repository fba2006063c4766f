"""The table of the library's methods in docs/client.md, from the code."""

import inspect
from collections.abc import Iterator
from typing import Any

from tenora_client import Client
from tenora_client._sync.adapters import Adapters
from tenora_client._sync.administration import Keys, Tenants

_PLACES: tuple[tuple[str, type], ...] = (("", Client), ("adapters.", Adapters), ("tenants.", Tenants), ("keys.", Keys))


def methods() -> str:
    """Return one table of all methods: call with its required arguments, result, first sentence."""
    rows = [row for prefix, kind in _PLACES for row in _rows(prefix, kind)]
    head = "| method | returns | purpose |\n|---|---|---|\n"
    return head + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _rows(prefix: str, kind: type) -> Iterator[tuple[str, str, str]]:
    for name, method in sorted(inspect.getmembers(kind, inspect.isfunction)):
        if not name.startswith("_"):
            signature = inspect.signature(method)
            purpose = (inspect.getdoc(method) or "").partition("\n\n")[0].replace("\n", " ")
            yield f"`{prefix}{name}({_arguments(signature)})`", _shown(signature.return_annotation), purpose


def _arguments(signature: inspect.Signature) -> str:
    given = list(signature.parameters.values())[1:]
    required = [parameter.name for parameter in given if parameter.default is inspect.Parameter.empty]
    names = [name for name in required if name not in ("options", "arguments")]
    return ", ".join([*names, *(["..."] if len(names) < len(given) else [])])


def _shown(annotation: Any) -> str:
    return "" if annotation == "None" else f"`{annotation}`".replace(" | ", " or ")
