"""Trains the demo's base model and adapters once, and keeps them::

    HOME/demo/stamp              the stamp of the recipe; there is a demo only if it is the present one
    HOME/demo/base/              the base model and its tokenizer, as transformers writes them
    HOME/demo/adapters/NAME/     one LoRA adapter each, as PEFT writes it

``python -m app.demo.train --home HOME`` does it from the command line.
"""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from app.demo.corpus import load_corpus
from app.demo.recipe import Recipe

_DEFAULT_RECIPE = Recipe()


@dataclass(frozen=True, slots=True)
class Demo:
    """Where the demo's models are.

    Attributes:
        base: folder of the base model.
        adapters: adapter name -> its folder; each belongs to the tenant of the same name.
    """

    base: Path
    adapters: dict[str, Path]


def ensure_demo(home: Path, progress: Progress | None, recipe: Recipe = _DEFAULT_RECIPE) -> Demo:
    """Return the demo in ``home``, training it first unless it is there and fits the recipe.

    Takes about half a minute the first time. A training that was killed is begun again; of two at once, the second
    waits and finds the demo made. Call it before vLLM is imported, which settles torch's threads for serving.

    Args:
        home: folder that is made if need be.
        progress: gets one task that advances with each training step.
        recipe: other training settings.
    """
    folder = home / "demo"
    demo = Demo(folder / "base", {name: folder / "adapters" / name for name in load_corpus().adapters})
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / "demo.lock"):
        if not _is_complete(folder, recipe):
            partial = home / "demo.partial"
            shutil.rmtree(partial, ignore_errors=True)
            _train(partial, recipe, progress)
            _replace(folder, partial)
    return demo


def _is_complete(folder: Path, recipe: Recipe) -> bool:
    try:
        return (folder / "stamp").read_text(encoding="utf-8") == recipe.stamp
    except FileNotFoundError:
        return False


def _train(folder: Path, recipe: Recipe, progress: Progress | None) -> None:
    # Imported here because it imports torch and PEFT: seconds that a start with a trained demo is spared.
    from app.demo.models import train_models

    total = recipe.base_steps + len(load_corpus().adapters) * recipe.adapter_steps
    train_models(folder, recipe, _on_step(progress, total))
    (folder / "stamp").write_text(recipe.stamp, encoding="utf-8")


def _on_step(progress: Progress | None, total: int) -> Callable[[], None]:
    if progress is None:
        return lambda: None
    task = progress.add_task("Training the demo models", total=total)
    return lambda: progress.advance(task)


def _replace(folder: Path, partial: Path) -> None:
    # The stamp goes first: killed half-way, the old folder no longer counts as a demo.
    (folder / "stamp").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that the system frees when this process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(home: Annotated[Path, typer.Option(help="where the demo is kept, below demo/")] = Path(".tenora")) -> None:
    """Make the demo's base model and adapters, unless they are there."""
    console = Console()
    with Progress(console=console) as progress:
        demo = ensure_demo(home, progress)
    console.print(f"base: {demo.base}")
    for name, folder in demo.adapters.items():
        console.print(f"{name}: {folder}")


if __name__ == "__main__":
    typer.run(main)
