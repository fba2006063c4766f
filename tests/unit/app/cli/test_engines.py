"""`tenora engines`: refusals before anything is started."""

from pathlib import Path

import pytest

from app.ray.transport import Deployed, Phase
from tests.support.cli import Tenora


@pytest.fixture
def tenora(tmp_path: Path) -> Tenora:
    return Tenora({"TENORA_HOME": str(tmp_path)})


@pytest.mark.parametrize("replicas", ["0", "0:0", "3:2", "1:1001", "a:b", "1:2:3", "-1", "1.5"])
def test_a_range_of_replicas_must_be_valid(tenora: Tenora, replicas: str) -> None:
    result = tenora("engines", "up", f"--replicas={replicas}", exit_code=2)
    assert "Write MIN:MAX or a number" in result.stderr


@pytest.mark.parametrize("command", ["up", "status", "demo"])
def test_without_ray_a_sentence_names_the_extra(
    tenora: Tenora, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    result = tenora("engines", command, exit_code=1)
    assert "pip install 'tenora[ray]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_ray_prints_is_no_part_of_the_status(tenora: Tenora, monkeypatch: pytest.MonkeyPatch) -> None:
    class Transport:
        async def call_all(self, *_arguments: object, timeout_s: float) -> list[bytes]:
            print("(raylet) The node has been marked dead", timeout_s)  # noqa: T201 - as Ray does
            return []

        async def deployed(self) -> Deployed:
            return Deployed(Phase.ABSENT)

    async def open_transport(_settings: object) -> Transport:
        return Transport()

    monkeypatch.setattr("app.ray.cluster.open_transport", open_transport)
    assert tenora.json("engines", "status") == []


def test_down_without_replicas_says_so(tenora: Tenora) -> None:
    assert "No engine replicas ran." in tenora("engines", "down").stderr
