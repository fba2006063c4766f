"""Validation of a batch's lines, as far as it needs neither a base model nor a registry."""

from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from app.services.batches.validation import Validator
from app.settings import BatchSettings


async def test_a_validation_that_ends_early_closes_its_file(tmp_path: Path) -> None:
    unused = cast("Any", None)
    validator = Validator(unused, unused, unused, unused, unused, BatchSettings())
    path = tmp_path / "lines.jsonl"
    path.write_text("{}\n" * 3)
    opened: list[bool] = []

    def is_open() -> bool:
        return str(path) in {file.path for file in psutil.Process().open_files()}

    async def stop() -> None:
        opened.append(is_open())
        raise RuntimeError("the batch was cancelled")

    with pytest.raises(RuntimeError, match="cancelled") as caught:
        await validator.validate(unused, unused, path, unused, between=stop)
    assert opened == [True]
    # The traceback keeps the frames alive, so only an explicit close can have closed the file.
    assert caught.value.__traceback__ is not None
    assert not is_open()
