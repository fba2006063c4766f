"""``python -m app.lab.bench.card``: run one part of the check, or show the results of all. See deploy/gpu/check.sh."""

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from app.lab.bench import report
from app.lab.bench.card.options import Options, Result

_PARTS = {"a": "kernels", "b": "parity", "c": "overhead", "d": "cold", "e": "quantised"}

app = typer.Typer(add_completion=False, no_args_is_help=True)


def _run(part: str, options: Options) -> Result:
    # Each part imports vLLM, torch or both, which takes seconds.
    if part == "a":
        from app.lab.bench.card import kernels

        return kernels.run(options)
    if part == "c":
        from app.lab.bench.card import lora_overhead

        return lora_overhead.run(options)
    if part == "d":
        from app.lab.bench.card import cold

        return cold.run(options)
    from app.lab.bench.card import parity

    return parity.run(options, quantised=part == "e")


@app.command()
def run(
    part: Annotated[str, typer.Argument(metavar="a|b|c|d|e", help="Part of the check")],
    out: Annotated[Path, typer.Option(help="Folder for the results")],
    device: Annotated[str, typer.Option(help="Device, cuda or cpu")] = "cuda",
    quick: Annotated[bool, typer.Option("--quick", help="Use small sizes, to show that the part runs")] = False,
    base: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Folder of a Llama; default: a generated one")
    ] = None,
) -> None:
    """Run one part, print its tables and write OUT/PART.json."""
    if part not in _PARTS:
        raise typer.BadParameter(f"There is no part {part}. Use a, b, c, d or e.")
    name = _PARTS[part]
    home = (out / "home").resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        result = _run(part, Options(device, quick, home, base.resolve() if base else None))
    except Exception as error:  # noqa: BLE001 - reported as the failure of this part
        traceback.print_exc()
        result = Result("did not end", {}, [], [f"{type(error).__name__}: {error}"])
    seconds = time.monotonic() - began
    content = {
        "part": name,
        "quick": quick,
        "seconds": seconds,
        "summary": result.summary,
        "failures": list(result.failures),
        **report.environment(),
        "figures": result.figures,
    }
    report.write(out / f"{part}-{name}.json", content)
    console = _console()
    for table in result.tables:
        console.print(table)
    for failure in result.failures:
        console.print(f"{name}: {failure}", style="red", soft_wrap=True)
    raise typer.Exit(1 if result.failures else 0)


@app.command()
def show(out: Annotated[Path, typer.Argument(help="Folder of the results")]) -> None:
    """Print one line for each part that has run."""
    table = Table("part", "result", "seconds", "summary", title_justify="left")
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("[a-e]-*.json"))]
    for content in contents:
        passed = "failed" if content["failures"] else "passed"
        table.add_row(content["part"], passed, f"{content['seconds']:.0f}", content["summary"])
    console = _console()
    if contents:
        console.print(report.describe(contents[0]), soft_wrap=True)
    console.print(table)


def _console() -> Console:
    # A pipe has no width, and the tables need this much.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)


if __name__ == "__main__":
    app()
