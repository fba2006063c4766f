"""Adapters written by other tools match transformers + PEFT token by token, and download as uploaded."""

import asyncio
import hashlib
import shutil
from pathlib import Path

import httpx
import pytest
from transformers import LlamaForCausalLM

from app.demo.train import Demo
from tests.support.bad_configs import config
from tests.support.odd_adapters import BOTH, ODD
from tests.support.parity import QUESTIONS, complete, prompt_of
from tests.support.peft_adapters import make_adapter
from tests.support.reference import PeftReference
from tests.support.server import Server

TOKENS = 12


@pytest.fixture(scope="module")
def odd(trained_demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Folder of each odd adapter and of the files that PEFT reads.

    Every adapter has distinct weights.
    """
    folder = tmp_path_factory.mktemp("odd")
    made = {}
    for seed, (name, one) in enumerate(ODD.items()):
        base = LlamaForCausalLM.from_pretrained(trained_demo.base)
        good = make_adapter(folder / f"{seed}-good", base=base, seed=seed, r=8, lora_alpha=128)
        upload, oracle = (shutil.copytree(good, folder / f"{seed}-{part}") for part in ("upload", "oracle"))
        one.change(upload)
        (one.for_peft or one.change)(oracle)
        made[name] = upload, oracle
    return made


@pytest.mark.slow
async def test_each_odd_adapter_answers_as_peft_computes_it(
    server: Server, trained_demo: Demo, odd: dict[str, tuple[Path, Path]]
) -> None:
    """All adapters run in one batch after another, through two slots."""
    key = server.tenant("odd")
    names = {name: f"odd-{number}" for number, name in enumerate(odd)}
    for name, (upload, _) in odd.items():
        answer = server.publish("odd", names[name], upload)
        assert answer.status_code == 201, (name, answer.text)
        warnings = answer.json()["warnings"]
        assert [ODD[name].warned in warning for warning in warnings] == [True] * bool(ODD[name].warned), warnings
    reference = PeftReference(trained_demo.base, {names[name]: oracle for name, (_, oracle) in odd.items()})
    cases = [(name, question) for name in odd for question in QUESTIONS]
    expected = {
        (name, question): reference.greedy(reference.encode(prompt_of(question)), names[name], TOKENS)
        for name, question in cases
    }
    assert len({tuple(tokens) for tokens in expected.values()}) > len(odd), "adapters must differ"
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        answers = await asyncio.gather(
            *[complete(client, key, names[name], prompt_of(question), TOKENS) for name, question in cases]
        )
    wrong = [case for case, answer in zip(cases, answers, strict=True) if answer != expected[case]]
    assert wrong == []


def test_an_odd_upload_is_one_version_and_comes_back_as_it_was(
    server: Server, odd: dict[str, tuple[Path, Path]]
) -> None:
    upload, _ = odd["no prefix, and expressions"]
    server.tenant("odd-again")
    first, again = (server.publish("odd-again", "prices", upload) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["digest"] == again.json()["digest"]
    with server.client(server.admin_key) as admin:
        for name in BOTH:
            answer = admin.get(f"/admin/tenants/odd-again/adapters/prices/versions/1/files/{name}")
            assert answer.content == (upload / name).read_bytes()
            assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'


def test_the_head_is_refused_with_the_setting_s_name(server: Server, trained_demo: Demo, tmp_path: Path) -> None:
    base = LlamaForCausalLM.from_pretrained(trained_demo.base)
    head = make_adapter(tmp_path / "head", base=base, target_modules=["q_proj", "lm_head"])
    server.tenant("odd")
    answer = server.publish("odd", "head", head)
    assert answer.status_code == 422
    (reason,) = answer.json()["error"]["reasons"]
    assert reason["code"] == "head_not_served"
    assert "TENORA_ENGINE__LORA_HEAD" in reason["message"]


def test_an_embedding_is_refused_with_the_way_out(server: Server, trained_demo: Demo, tmp_path: Path) -> None:
    base = LlamaForCausalLM.from_pretrained(trained_demo.base)
    folder = make_adapter(tmp_path / "embedding", base=base, target_modules=["q_proj", "v_proj"])
    config(target_modules=["q_proj", "v_proj", "embed_tokens"])(folder)
    server.tenant("odd")
    answer = server.publish("odd", "embedding", folder)
    assert answer.status_code == 422
    (reason,) = answer.json()["error"]["reasons"]
    assert "merge the adapter into the base" in reason["message"]
