"""``tenora adapters merge``: merge several versions into a new one with PEFT."""

import re
from typing import Annotated, Any, Optional

import typer

from tenora_client.cli.arguments import TenantOption, adapter_name, version_name
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.descriptions import read_labels, show_published
from tenora_client.cli.output import emit_json
from tenora_client.transport import adapters_path

_WEIGHT = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)", re.ASCII)


def _source(text: str) -> dict[str, Any]:
    """Parse ``pricing@3=0.5`` into the API's form."""
    version, equals, weight = text.partition("=")
    if not equals or "@" not in version or not _WEIGHT.fullmatch(weight):
        raise typer.BadParameter(f"{text!r} is not a source. Write ADAPTER@NUMBER=WEIGHT, such as pricing@3=0.5.")
    return {"version": version_name(version), "weight": float(weight)}


_Target = Annotated[
    str, typer.Argument(metavar="ADAPTER", parser=adapter_name, help="Adapter that gets the new version")
]
_Sources = Annotated[
    list[Any],
    typer.Option(
        "--source", metavar="ADAPTER@N=WEIGHT", parser=_source, help="Version and its weight; give two or more"
    ),
]
_Method = Annotated[str, typer.Option(help="Method: linear, cat, svd, ties, dare_linear, dare_ties or magnitude_prune")]
_Density = Annotated[Optional[float], typer.Option(help="Share of the values to keep (ties, dare_*, magnitude_prune)")]
_Sign = Annotated[Optional[str], typer.Option(help="Election of the sign: total or frequency (ties, dare_ties)")]
_SvdRank = Annotated[Optional[int], typer.Option(help="Rank of the result (svd)")]
_SvdFull = Annotated[Optional[bool], typer.Option(help="PEFT's argument of this name (svd)")]
_Seed = Annotated[Optional[int], typer.Option(help="Seed of the random numbers (dare_*)")]
_Alias = Annotated[str, typer.Option(help="Alias to move to the new version (default: none)")]
_Labels = Annotated[
    Optional[list[str]], typer.Option("--label", metavar="NAME=VALUE", help="Label of the new version; repeatable")
]
_AllowNoEffect = Annotated[
    bool, typer.Option("--allow-no-effect", help="Accept a version that answers exactly as the base does")
]


def merge(
    target: _Target,
    sources: _Sources,
    method: _Method,
    density: _Density = None,
    majority_sign_method: _Sign = None,
    svd_rank: _SvdRank = None,
    svd_full_matrices: _SvdFull = None,
    seed: _Seed = None,
    alias: _Alias = "",
    labels: _Labels = None,
    allow_no_effect: _AllowNoEffect = False,
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Merge versions of one tenant into a new version with PEFT."""
    body = {
        "sources": sources,
        "method": method,
        "density": density,
        "majority_sign_method": majority_sign_method,
        "svd_rank": svd_rank,
        "svd_full_matrices": svd_full_matrices,
        "seed": seed,
        "options": {"alias": alias or None, "labels": read_labels(labels or []), "allow_no_effect": allow_no_effect},
    }
    with connect_as_admin(url, key, as_json=as_json) as api:
        version = api.call("POST", adapters_path(tenant, target, "merges"), body)
    if as_json:
        emit_json(version)
    else:
        show_published(version)
