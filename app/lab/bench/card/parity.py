"""Parts ``parity`` and ``quantised``: ``tenora verify`` on random adapters of several ranks, and on the base alone."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from app.lab.bench import rivals
from app.lab.bench.card.options import Options, Result
from app.lab.bench.card.quantised import rounded_base
from app.lab.bench.servers import BASE_NAME, Server
from app.verify.comparison import Answer, Verdict
from app.verify.completions import PATH, answer_of, request_body
from app.verify.reference import context_of
from app.verify.run import verify
from tenora_client.transport import Api

#: Somewhat less than half of a card's memory: the reference needs the rest.
_GPU_MEMORY = 0.45


@dataclass(frozen=True, slots=True)
class _Size:
    ranks: tuple[int, ...]
    lengths: tuple[int, ...]
    tokens: int


_FULL = _Size(ranks=(16, 64), lengths=(8, 64, 512, 2048, 8192), tokens=32)
_QUICK = _Size(ranks=(8, 16), lengths=(8, 64, 512), tokens=16)


def run(options: Options, *, quantised: bool) -> Result:
    """Compare every adapter and the base.

    Args:
        quantised: whether the engine serves the base in fp8. A CPU serves the rounded weights in bfloat16.

    Raises:
        ServerFailed
    """
    size, base = _QUICK if options.quick else _FULL, options.the_base()
    folders = options.adapters(size.ranks, len(size.ranks))
    adapters = {f"rank-{rank}": folder for rank, folder in zip(size.ranks, folders, strict=True)}
    served, settings = _served(options, base, size, quantised=quantised)
    verdicts: dict[str, Verdict] = {}
    with (
        tempfile.TemporaryDirectory(dir=options.home) as folder,
        rivals.tenora(served, adapters, home=options.home, folder=Path(folder), settings=settings) as server,
    ):
        for name, adapter in {BASE_NAME: None, **adapters}.items():
            verdicts[name] = _verdict(server, name, base, adapter, options.device, size, fp8=quantised)
    failures = [f"{name}: {reason}" for name, verdict in verdicts.items() for reason in verdict.reasons]
    worst = max(verdict.largest / verdict.bound_largest for verdict in verdicts.values())
    return Result(
        f"largest difference is {worst:.2f} of its bound",
        {"fp8": quantised, "verdicts": {name: asdict(verdict) for name, verdict in verdicts.items()}},
        [_table(verdicts, fp8=quantised)],
        failures,
    )


def _served(options: Options, base: Path, size: _Size, *, quantised: bool) -> tuple[Path, Mapping[str, str]]:
    """Folder that the engine loads, and its settings."""
    settings = {
        "TENORA_ENGINE__DTYPE": "bfloat16",
        "TENORA_ENGINE__MAX_LORAS": "4",
        "TENORA_ENGINE__MAX_LORA_RANK": str(max(size.ranks)),
        "TENORA_ENGINE__MAX_MODEL_LEN": str(min(context_of(base), max(size.lengths) + size.tokens)),
    }
    if options.device == "cuda":
        settings["TENORA_ENGINE__EXTRA_ARGS"] = json.dumps({"gpu_memory_utilization": _GPU_MEMORY})
    if not quantised:
        return base, settings
    if options.device == "cpu":
        return rounded_base(options.home, base), settings
    return base, settings | {"TENORA_ENGINE__QUANTIZATION": "fp8"}


def _verdict(
    server: Server,
    name: str,
    base: Path,
    adapter: Path | None,
    device: str,
    size: _Size,
    *,
    fp8: bool,
) -> Verdict:
    key = server.headers_for(name)["authorization"].removeprefix("Bearer ")
    with Api(server.url, key) as api:

        def ask(prompt: Sequence[int], count: int) -> Answer:
            return answer_of(prompt, api.call("POST", PATH, request_body(name, prompt, count)))

        return verify(
            ask,
            base,
            adapter,
            device=device,
            dtype="bfloat16",
            tokens=size.tokens,
            lengths=size.lengths,
            fp8=fp8,
        )


def _table(verdicts: Mapping[str, Verdict], *, fp8: bool) -> Table:
    title = f"logprobs against transformers and PEFT{', base in fp8' if fp8 else ''}"
    table = Table(
        "model", "prompt tokens", "largest", "bound", "mean", "first differing token", title=title, title_justify="left"
    )
    for name, verdict in verdicts.items():
        for prompt in verdict.prompts:
            first = "-" if prompt.first_other is None else str(prompt.first_other + 1)
            cells = (f"{prompt.largest:.2e}", f"{verdict.bound_largest:.2e}", f"{prompt.mean:.2e}", first)
            table.add_row(name, str(prompt.prompt_tokens), *cells)
    return table
