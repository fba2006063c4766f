"""``tenora verify``: compare a running engine's answers with transformers and PEFT on this machine."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.configuration import load_settings
from app.cli.setup import report_failures
from app.served_base import base_folder
from app.verify.comparison import Answer, Verdict
from tenora_client.cli.arguments import no_version, tenant_name, version_name
from tenora_client.cli.connection import Json, Key, Url, connect_as_tenant
from tenora_client.cli.export import download
from tenora_client.cli.output import FAILED, emit_json, emit_line, emit_table
from tenora_client.transport import Api, adapters_path

_COLUMNS = {
    "prompt tokens": "prompt_tokens",
    "largest": "largest",
    "mean": "mean",
    "first differing token": "first_other",
}


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
    Any, typer.Argument(metavar="[TENANT/]ADAPTER@N", parser=_owned_version, help="Version of an adapter")
]


def verify(
    version: _Version,
    device: Annotated[Device, typer.Option("--device", help="Device of the reference")] = Device.CPU,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Dtype of the running engine")] = Dtype.BFLOAT16,
    tokens: Annotated[int, typer.Option("--tokens", min=1, max=256, help="Number of tokens of each answer")] = 32,
    longest: Annotated[int, typer.Option("--longest", min=1, help="Maximum length of a prompt, in tokens")] = 2048,
    files: Annotated[
        Path | None,
        typer.Option(
            "--files",
            exists=True,
            file_okay=False,
            help="Folder with the reference's adapter (default: the version's files)",
        ),
    ] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Compare a version's answers on the running engine with transformers and PEFT.

    The reference loads the base of TENORA_BASE_MODEL, or the demo's in HOME. The exit code is 1 if the answers differ
    by more than rounding.
    """
    tenant, model = version
    with report_failures():
        base = base_folder(load_settings())
    with (
        tempfile.TemporaryDirectory(prefix="tenora-verify-") as folder,
        connect_as_tenant(url, key, tenant=tenant, model=model, as_json=as_json) as api,
    ):
        if files is None:
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
    # These modules import torch, transformers and PEFT.
    from app.verify.completions import PATH, answer_of, request_body
    from app.verify.prompts import default_lengths
    from app.verify.reference import context_of
    from app.verify.run import verify as compare

    def ask(prompt: Sequence[int], count: int) -> Answer:
        return answer_of(prompt, api.call("POST", PATH, request_body(model, prompt, count)))

    lengths = default_lengths(context_of(base), longest)
    return compare(ask, base, adapter, device=device, dtype=dtype, tokens=tokens, lengths=lengths)


def _show(model: str, verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        emit_json({"version": model, "right": not verdict.reasons} | asdict(verdict))
        return
    rows = [
        asdict(prompt)
        | {
            "largest": f"{prompt.largest:.2e}",
            "mean": f"{prompt.mean:.2e}",
            "first_other": None if prompt.first_other is None else prompt.first_other + 1,
        }
        for prompt in verdict.prompts
    ]
    emit_table(_COLUMNS, rows, empty="")
    emit_line(
        f"Differences of logprobs: largest {verdict.largest:.2e} (bound {verdict.bound_largest:.2e}), "
        f"mean {verdict.mean:.2e} (bound {verdict.bound_mean:.2e})."
    )
    for reason in verdict.reasons:
        emit_line(reason)
    emit_line(f"The answers of {model} {'differ from' if verdict.reasons else 'match'} the reference.")
