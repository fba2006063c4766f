"""Train the demo's base model and adapters once, and keep them::

    HOME/demo/stamp              stamp of the recipe, the demo is valid only if it equals the current one
    HOME/demo/base/              base model and tokenizer, in transformers' format
    HOME/demo/adapters/NAME/     one LoRA adapter each, in PEFT's format

Command line: ``python -m app.demo.train --home HOME``.
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
    """Folders of the demo's models.

    Attributes:
        base: folder of the base model.
        adapters: folder by adapter name. Each adapter belongs to the tenant of the same name.
    """

    base: Path
    adapters: dict[str, Path]


def ensure_demo(home: Path, progress: Progress | None, recipe: Recipe = _DEFAULT_RECIPE) -> Demo:
    """Return the demo in ``home``. Train it first if it is missing or does not match the recipe.

    The first training takes about half a minute. A killed training starts over. A second process waits for the first
    and uses its result. Call this before vLLM is imported, which fixes torch's threads for serving.

    Args:
        home: folder of the demo, created if missing.
        progress: progress display that gets one task, advanced with each training step.
        recipe: training settings.
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
    # Imported here because torch and PEFT take seconds. A start with a trained demo skips them.
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
    # Remove the stamp first: after a crash, the half-removed folder is no longer valid.
    (folder / "stamp").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock. The system releases it at any end of this process."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(
    home: Annotated[Path, typer.Option(help="HOME folder, which keeps the demo in its folder demo")] = Path(".tenora"),
) -> None:
    """Train the demo's base model and adapters unless they exist."""
    console = Console()
    with Progress(console=console) as progress:
        demo = ensure_demo(home, progress)
    console.print(f"base: {demo.base}")
    for name, folder in demo.adapters.items():
        console.print(f"{name}: {folder}")


if __name__ == "__main__":
    typer.run(main)
