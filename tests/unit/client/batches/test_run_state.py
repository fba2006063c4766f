"""State of an unfinished run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tenora_client.batches.lines import BadInput
from tenora_client.batches.run_state import RunState, load_state, save_state, state_path

FRESH = RunState("ab" * 32, {"--model": "pricing", "--width": None, "--metadata": {"a": "b"}})


def test_a_state_is_found_again(tmp_path: Path) -> None:
    path = state_path(tmp_path / "out.jsonl")
    assert load_state(path, FRESH) is None
    begun = replace(FRESH, file_id="file-1", batch_id="batch_1")
    save_state(path, begun)
    assert load_state(path, FRESH) == begun
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl.batch"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"input": "cd" * 32}, "whose input was another one"),
        ({"arguments": FRESH.arguments | {"--model": "other"}}, "with --model pricing, not other"),
        ({"arguments": FRESH.arguments | {"--width": 4}}, "with --width none, not 4"),
        ({"arguments": FRESH.arguments | {"--metadata": {}}}, '{"a": "b"}'),
    ],
)
def test_another_run_is_refused_with_the_difference(tmp_path: Path, other: dict[str, Any], words: str) -> None:
    path = tmp_path / "out.jsonl.batch"
    save_state(path, FRESH)
    with pytest.raises(BadInput) as error:
        load_state(path, replace(FRESH, **other))
    assert words in str(error.value)
    assert "Give another -o, or remove" in str(error.value)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "x": 2}', '"x"'])
def test_another_file_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "out.jsonl.batch"
    path.write_text(content)
    with pytest.raises(BadInput, match="is not a file of `tenora batch run`"):
        load_state(path, FRESH)
    assert path.read_text() == content
