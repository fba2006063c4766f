"""Folders of adapters as PEFT saves them."""

import uuid
from pathlib import Path

from tests.support.serving import peft_files


def new_adapter(folder: Path) -> Path:
    """Write an adapter with random weights, unlike any other."""
    peft_files(folder, seed=uuid.uuid4().int % 2**31)
    return folder
