"""Bad adapters that would give wrong answers in vLLM or crash it: each is refused without effect on other tenants."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.demo.train import Demo
from tests.support.bad_adapters import BAD
from tests.support.server import Server

pytestmark = pytest.mark.slow

#: Rejected during the transfer, before any validation.
TOO_LARGE = {"config too large"}


@pytest.fixture(scope="module")
def witness(server: Server, keys: dict[str, str]) -> Iterator[httpx.Client]:
    with server.client(keys["pricing"]) as client:
        yield client


@pytest.fixture(scope="module")
def before(witness: httpx.Client) -> list[object]:
    """Answers of another tenant before the first bad adapter."""
    return answers(witness)


def answers(client: httpx.Client) -> list[object]:
    return [
        client.post(
            "/v1/completions",
            json={
                "model": model,
                "prompt": "[INST] What is sugar? [/INST]",
                "max_tokens": 12,
                "temperature": 0,
                "logprobs": 2,
            },
        ).json()["choices"]
        for model in ("demo", "pricing")
    ]


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_bad_adapter_is_refused_with_its_reason(
    server: Server, witness: httpx.Client, before: list[object], trained_demo: Demo, tmp_path: Path, name: str
) -> None:
    bad = BAD[name]
    directory = shutil.copytree(trained_demo.adapters["pricing"], tmp_path / "bad")
    bad.change(directory)
    answer = server.publish("supply-chain", "bad", directory)
    error = answer.json()["error"]
    if name in TOO_LARGE:
        assert (answer.status_code, error["code"]) == (413, "too_large")
        return
    assert answer.status_code == 422, answer.text
    assert error["code"] == "adapter_rejected"
    assert bad.code in {reason["code"] for reason in error["reasons"]}
    for reason in error["reasons"]:
        assert {"field", "found", "allowed", "message"} <= set(reason)
    assert answers(witness) == before


def test_nothing_of_the_refused_was_kept(server: Server) -> None:
    with server.client(server.admin_key) as admin:
        listed = admin.get("/admin/tenants/supply-chain/adapters").json()["data"]
    assert {adapter["name"] for adapter in listed} <= {"supply-chain"}
