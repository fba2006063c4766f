"""State of an unfinished run, in a file next to its output: the same command resumes a killed run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tenora_client.atomic_files import new_file
from tenora_client.batches.lines import BadInput

SUFFIX = ".batch"
_FORMAT = 1


@dataclass(frozen=True)
class RunState:
    """Progress of a run.

    Attributes:
        input: SHA-256 (hex) of the input.
        arguments: values of the options that shape the batch, and the server, by their names for people.
        file_id: the uploaded input; None before the upload.
        batch_id: the batch; None before its creation.
    """

    input: str
    arguments: Mapping[str, Any]
    file_id: str | None = None
    batch_id: str | None = None


def state_path(output: Path) -> Path:
    """Return the path of the state of an output's run."""
    return output.with_name(output.name + SUFFIX)


def save_state(path: Path, state: RunState) -> None:
    """Write the state at once and durably.

    Raises:
        OSError: it cannot be written.
    """
    with new_file(path) as part, part.open("x", encoding="utf-8") as file:
        json.dump({"format": _FORMAT, **asdict(state)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def load_state(path: Path, fresh: RunState) -> RunState | None:
    """Return the state of an earlier run, None if there is none.

    Args:
        fresh: this run's input and arguments.

    Raises:
        BadInput: the earlier run had another input or other arguments, or the file is not such a state.
        OSError: it cannot be read.
    """
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        state = RunState(**saved) if saved.pop("format") == _FORMAT else None
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        state = None
    if state is None:
        raise BadInput(f"{path} is not a file of `tenora batch run`. Give another -o, or move the file.")
    remedy = f"Give another -o, or remove {path} to start a new batch."
    if state.input != fresh.input:
        raise BadInput(f"{path} belongs to a run whose input was another one: {_ran(state)}. {remedy}")
    for name, value in fresh.arguments.items():
        earlier = state.arguments.get(name)
        if earlier != value:
            raise BadInput(f"{path} belongs to a run with {name} {_shown(earlier)}, not {_shown(value)}. {remedy}")
    return state


def _ran(state: RunState) -> str:
    return f"the batch {state.batch_id}" if state.batch_id else "its batch was not created yet"


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value) if isinstance(value, dict) else str(value)
