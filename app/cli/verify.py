"""``tenora verify``: the running engine's answers against transformers and PEFT on this machine."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from app.base_model import base_folder
from app.cli.arguments import no_version, tenant_name, version_name
from app.cli.client import Api, adapters_path
from app.cli.connection import Json, Key, Url, connect_as_tenant
from app.cli.export import download
from app.cli.output import FAILED, emit_json, emit_line, emit_table
from app.settings import Settings
from app.verify.comparison import Answer, Verdict, judge
from app.verify.prompts import prompts

_COLUMNS = {"prompt": "prompt_tokens", "largest": "largest", "mean": "mean", "first other token": "first_other"}


class Dtype(StrEnum):
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


def _owned_version(text: str) -> tuple[str | None, str]:
    owner, _, version = text.rpartition("/")
    if "@" not in version:
        raise no_version(version)
    return tenant_name(owner) if owner else None, version_name(version)


_Version = Annotated[
    Any, typer.Argument(metavar="[TENANT/]ADAPTER@N", parser=_owned_version, help="a version of an adapter")
]


def verify(
    version: _Version,
    device: Annotated[Device, typer.Option("--device", help="where the reference runs")] = Device.CPU,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="what the engine computes in")] = Dtype.BFLOAT16,
    tokens: Annotated[int, typer.Option("--tokens", min=1, max=256, help="tokens of each answer")] = 32,
    longest: Annotated[int, typer.Option("--longest", min=1, help="tokens of the longest prompt")] = 2048,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Compare a version's answers on the running engine with transformers and PEFT.

    The base is the one of TENORA_BASE_MODEL, or the demo's in HOME. Ends with 1 where the engine is wrong.
    """
    tenant, model = version
    base = base_folder(Settings())
    with (
        tempfile.TemporaryDirectory(prefix="tenora-verify-") as folder,
        connect_as_tenant(url, key, tenant=tenant, model=model, as_json=as_json) as api,
    ):
        adapter, _, number = model.partition("@")
        files = Path(folder) / "adapter"
        download(api, adapters_path(None, adapter, "versions", number), files)
        verdict = _verdict(api, model, base, files, device, dtype, tokens, longest)
    _show(model, verdict, as_json=as_json)
    if verdict.reasons:
        raise typer.Exit(FAILED)


def _verdict(
    api: Api, model: str, base: Path, adapter: Path, device: Device, dtype: Dtype, tokens: int, longest: int
) -> Verdict:
    import torch

    from app.verify.reference import Reference, context_of, special_ids

    vocabulary, special = special_ids(base)
    asked = prompts(vocabulary, special, context=context_of(base), longest=longest)
    answers = [_ask(api, model, prompt, tokens) for prompt in asked]
    exact = Reference(base, adapter, device=device, dtype=torch.float32).scores(answers)
    if dtype is Dtype.FLOAT32:
        return judge(answers, exact)
    return judge(answers, exact, Reference(base, adapter, device=device, dtype=getattr(torch, dtype)).scores(answers))


def _ask(api: Api, model: str, prompt: Sequence[int], tokens: int) -> Answer:
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
    }
    choice = api.call("POST", "/v1/completions", body)["choices"][0]
    # A logprob that is not a number has no word in JSON.
    logprobs = (float("nan") if one is None else one for one in choice["logprobs"]["token_logprobs"])
    return Answer(tuple(prompt), tuple(choice["token_ids"]), tuple(logprobs))


def _show(model: str, verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        emit_json({"version": model, "right": not verdict.reasons} | asdict(verdict))
        return
    rows = [asdict(one) | {"largest": f"{one.largest:.2e}", "mean": f"{one.mean:.2e}"} for one in verdict.prompts]
    emit_table(_COLUMNS, rows, empty="")
    emit_line(
        f"largest difference {verdict.largest:.2e} (allowed {verdict.bound_largest:.2e}), "
        f"mean {verdict.mean:.2e} (allowed {verdict.bound_mean:.2e})"
    )
    for reason in verdict.reasons:
        emit_line(reason)
    emit_line(f"{model}: {'wrong' if verdict.reasons else 'right'}")
