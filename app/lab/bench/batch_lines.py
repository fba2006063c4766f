"""Lines of the workload ``batch``, and comparisons of its results with them. Pure, except for files of lines."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from app.lab.bench.workload import SHORTEST

ENDPOINT = "/v1/chat/completions"
#: Exclusive upper bound of the lengths of prompts and answers, in tokens. Chat templates add a few to the prompts.
LONGEST = 64


@dataclass(frozen=True, slots=True)
class Line:
    """Line of a batch: a greedy chat with one adapter."""

    custom_id: str
    adapter: str
    prompt: str
    output_tokens: int

    def body(self) -> dict[str, Any]:
        """Body of the request. The answer has exactly ``output_tokens`` tokens."""
        return {
            "model": self.adapter,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }

    def record(self) -> dict[str, Any]:
        """Line of the input file, in OpenAI's form."""
        return {"custom_id": self.custom_id, "method": "POST", "url": ENDPOINT, "body": self.body()}


def make_lines(
    count: int, adapters: Sequence[str], words: Sequence[str], *, seed: int | str, words_seed: str
) -> list[Line]:
    """Draw shuffled lines, the same number for each adapter. Lengths are uniform.

    Args:
        words: texts of tokens. A prompt joins some of them, since a repeated prompt would measure the prefix cache.
        seed: seed of lengths and order.
        words_seed: seed of the prompts' words, together with ``seed``.
    """
    chance = random.Random(seed)  # noqa: S311 - a benchmark wants the same numbers every time
    speech = random.Random(f"{seed} {words_seed}")  # noqa: S311
    lines = [
        Line(
            f"line-{number}",
            adapters[number % len(adapters)],
            " ".join(speech.choices(words, k=chance.randrange(SHORTEST, LONGEST))),
            chance.randrange(SHORTEST, LONGEST),
        )
        for number in range(count)
    ]
    chance.shuffle(lines)
    return lines


def by_adapter(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Group the lines by adapter, in order."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.adapter, []).append(line)
    return groups


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    """Write the input file of a batch."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(line.record())}\n" for line in lines)


def read_results(path: Path) -> list[dict[str, Any]]:
    """Read the lines of an output file. A run without an output has none."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return [json.loads(text) for text in file]


def compare(
    lines: Sequence[Line], results: Iterable[Mapping[str, Any]], charged: Mapping[str, int] | None = None
) -> dict[str, float]:
    """Count what an output lacks, and what was charged without an answer.

    Args:
        results: lines of the output in OpenAI's form.
        charged: ``requests``, ``prompt_tokens`` and ``output_tokens`` of the usage report. None: nothing is charged.

    Returns:
        ``lost``: lines without an answer. ``double``: answers beyond the first of a line. With ``charged`` also
        ``charged_twice``: charged requests beyond one for each answer, and ``tokens_off``: charged tokens minus those
        of the answers.
    """
    bodies = [(row["custom_id"], row["response"]["body"]) for row in results if _is_answer(row)]
    answered = Counter(custom_id for custom_id, _ in bodies)
    figures = {
        "lost": float(sum(line.custom_id not in answered for line in lines)),
        "double": float(answered.total() - len(answered)),
    }
    if charged is not None:
        said = sum(body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"] for _, body in bodies)
        figures["charged_twice"] = float(charged["requests"] - len(answered))
        figures["tokens_off"] = float(charged["prompt_tokens"] + charged["output_tokens"] - said)
    return figures


def _is_answer(row: Mapping[str, Any]) -> bool:
    return row["response"] is not None and row["response"]["status_code"] == 200


def extrapolated_s(measured_s: Sequence[float], adapters: int) -> float:
    """Seconds for all adapters by the rule that each takes the mean of the measured ones.

    The rule holds since every adapter has the same number of lines, with lengths from one distribution.
    """
    return mean(measured_s) * adapters
