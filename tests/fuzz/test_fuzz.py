"""Input fuzzing with a few thousand inputs per run.

``python -m tests.fuzz --count 1000000`` is the long form.
"""

import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.fuzz import runner
from tests.fuzz.runner import Failed, fuzz, make_input
from tests.fuzz.targets import AdapterTarget, ArchiveTarget, FormTarget, Target, check_reasons
from tests.fuzz.watch import MAX_BYTES

_COUNT = 1200


@pytest.mark.parametrize("target", [AdapterTarget, FormTarget, ArchiveTarget])
def test_every_input_comes_to_a_verdict(target: type[Target], tmp_path: Path) -> None:
    """Every run has another seed, which a failure names."""
    seed = random.SystemRandom().randrange(2**32)
    report = fuzz(seed, range(_COUNT), kept=tmp_path, only=target.name)
    verdicts = report.verdicts[target.name]
    assert report.count == _COUNT
    assert report.grown_bytes < MAX_BYTES
    # If all inputs were refused at the first check, the code behind it would be untested.
    assert sum(times for verdict, times in verdicts.items() if verdict.startswith("accepted")) > _COUNT / 50
    assert len(verdicts) > 5


def test_an_input_is_the_same_in_every_run() -> None:
    for kind in (AdapterTarget, FormTarget, ArchiveTarget):
        with closing(kind()) as target:
            inputs = [[make_input(target, seed, index) for index in range(20)] for seed in (3, 3, 4)]
        assert inputs[0] == inputs[1] != inputs[2]


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--count", "30", "--seed", "5", "--kept", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("30 inputs, seed 5,")
    assert [line.partition(":")[0] for line in done.stdout.splitlines() if "slowest" in line] == [
        "adapter",
        "form",
        "archive",
    ]


class _Broken(Target):
    """A reader that misbehaves."""

    name = "broken"
    misbehave: Callable[[Path], object]

    def make(self, rng: random.Random) -> tuple[bytes, ...]:
        return (b"its input",)

    def read(self, data: tuple[bytes, ...], folder: Path) -> str:
        type(self).misbehave(folder)
        return "accepted"


def _spin(folder: Path) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("misbehave", "error"),
    [
        (lambda folder: {}["absent"], "KeyError"),
        # More than an arena of this process may have free.
        (lambda folder: bytearray(128 * MAX_BYTES), "MemoryError"),
        (lambda folder: (folder.parent / "outside").write_bytes(b"x"), "outside of the folder"),
        (lambda folder: (folder / ".." / "outside").mkdir(), "outside of the folder"),
        (lambda folder: (folder / "deep").symlink_to("/etc/passwd"), "outside of the folder"),
        (lambda folder: subprocess.run(["true"], check=True), "subprocess"),  # noqa: S607
        (lambda folder: check_reasons(()), "AssertionError"),
        (_spin, "no end after 1 s of CPU time"),
    ],
)
def test_what_breaks_a_bound_is_found_and_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, misbehave: Callable[[Path], object], error: str
) -> None:
    monkeypatch.setattr(_Broken, "misbehave", misbehave, raising=False)
    monkeypatch.setattr(runner, "TARGETS", (_Broken,))
    with pytest.raises(Failed, match=error) as caught:
        fuzz(8, range(9), kept=tmp_path)
    assert caught.value.kept == tmp_path / "broken-8-0"
    assert (caught.value.kept / "0").read_bytes() == b"its input"
