"""Inputs that no batch can run, through the API and the command: one sentence for each mistake."""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

from tenora_client.batches.lines import ENDPOINTS
from tests.support.cli import Tenora

COMPLETIONS = "/v1/completions"
_PATIENCE_S = 120


def line(custom_id: str = "1", url: str = COMPLETIONS, **body: Any) -> bytes:
    request = {"prompt": "hi", "max_tokens": 4} | body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": request}).encode() + b"\n"


@pytest.fixture
def slug(site: tuple[str, str], new_slug: Callable[[], str]) -> str:
    return new_tenant(site, new_slug())


def new_tenant(site: tuple[str, str], slug: str) -> str:
    post(site, "/admin/tenants", {"slug": slug})
    return slug


def post(site: tuple[str, str], path: str, body: dict[str, Any], method: str = "POST") -> Any:
    url, admin_key = site
    answer = httpx.request(method, f"{url}{path}", json=body, headers={"x-api-key": admin_key}, trust_env=False)
    assert answer.is_success, answer.text
    return answer.json()


def new_key(site: tuple[str, str], slug: str, **restrictions: Any) -> str:
    body = {"name": "test", "scopes": ["inference", "batch"], **restrictions}
    return str(post(site, f"/admin/tenants/{slug}/keys", body)["key"])


@pytest.fixture
def key(site: tuple[str, str], slug: str) -> str:
    return new_key(site, slug)


def client_of(site: tuple[str, str], key: str) -> httpx.Client:
    return httpx.Client(base_url=site[0], headers={"x-api-key": key}, timeout=60, trust_env=False)


@pytest.fixture
def api(site: tuple[str, str], key: str) -> Iterator[httpx.Client]:
    with client_of(site, key) as client:
        yield client


@dataclass(frozen=True)
class _File:
    id: str


def _killed(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def upload(api: httpx.Client, content: bytes) -> httpx.Response:
    return api.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)})


def create(api: httpx.Client, file_id: str, endpoint: str = COMPLETIONS, **fields: Any) -> httpx.Response:
    body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **fields}
    return api.post("/v1/batches", json=body)


def refused(answer: httpx.Response) -> tuple[int, str, str]:
    """Return status, code and sentence of a refusal."""
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


def problems(api: httpx.Client, content: bytes) -> list[tuple[int | None, str, str]]:
    """Create a batch, and return line, code and sentence of each problem that made it fail."""
    answer = create(api, upload(api, content).json()["id"])
    assert answer.status_code == 200, answer.text
    deadline = time.monotonic() + _PATIENCE_S
    while (batch := api.get(f"/v1/batches/{answer.json()['id']}").json())["status"] == "validating":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert batch["status"] == "failed"
    return [(problem["line"], problem["code"], problem["message"]) for problem in batch["errors"]["data"]]


def run(tenora: Tenora, key: str, path: Path, content: bytes, *options: str, exit_code: int) -> list[str]:
    """Run the command with an input, and return what it says. It must leave nothing but the input."""
    path.write_bytes(content)
    result = tenora("batch", "run", str(path), *options, TENORA_KEY=key, exit_code=exit_code)
    assert [left.name for left in path.parent.iterdir()] == [path.name]
    assert result.stdout == ""
    told = (text.removeprefix("error: ") for text in result.stderr.splitlines())
    return [text for text in told if not text.startswith(("Lines to run", "batch_"))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "inputs").mkdir()
    return tmp_path / "inputs" / "in.jsonl"


@pytest.mark.parametrize(
    ("content", "problem", "told"),
    [
        (
            b"hello\n",
            (1, "invalid_value", "The line is not valid JSON: Expecting value at character 0."),
            "Line 1 of in.jsonl is not valid JSON: JSON is malformed: invalid character (byte 0).",
        ),
        (
            line() + line("2", prompt="caf\u00e9").replace(b"\\u00e9", b"\xe9"),
            (2, "invalid_value", "The line is not UTF-8 at byte 86. Send JSONL in UTF-8."),
            "Line 2 of in.jsonl is not UTF-8. Save the file with this encoding.",
        ),
        (
            line() * 2,
            (2, "duplicate_custom_id", "custom_id is the same as in line 1; it must be unique in the file."),
            "Line 2 has the custom_id '1' of an earlier line. Give each line another one.",
        ),
        (
            line(url="/v1/unknown"),
            (1, "invalid_value", f"url is '/v1/unknown'; it must be '{COMPLETIONS}', the batch's endpoint."),
            "Line 1 of in.jsonl has the url '/v1/unknown'. Write one of " + ", ".join(ENDPOINTS) + ".",
        ),
        (
            b"\n \r\n",
            (None, "empty_file", "The file has no lines. Send a request in each line."),
            "in.jsonl has no prompts. Give a file with at least one.",
        ),
    ],
    ids=["not JSON", "encoding", "duplicate", "route", "blank"],
)
def test_the_command_sends_no_line_that_it_can_refuse(
    api: httpx.Client, tenora: Tenora, key: str, path: Path, content: bytes, problem: Any, told: str
) -> None:
    assert problems(api, content) == [problem]
    files = api.get("/v1/files").json()["data"]
    assert run(tenora, key, path, content, exit_code=2) == [told]
    assert api.get("/v1/files").json()["data"] == files


def test_an_empty_file(api: httpx.Client, tenora: Tenora, key: str, path: Path) -> None:
    status, _, message = refused(upload(api, b""))
    assert (status, message) == (400, "The file is empty. Send a file with content.")
    assert run(tenora, key, path, b"", exit_code=2) == ["in.jsonl has no prompts. Give a file with at least one."]


def test_an_unknown_route_of_the_batch(api: httpx.Client, tenora: Tenora, key: str, path: Path) -> None:
    file_id = upload(api, line()).json()["id"]
    status, _, message = refused(create(api, file_id, "/v1/unknown"))
    assert status == 400
    assert message.startswith("endpoint is '/v1/unknown'; it must be ")
    told = run(tenora, key, path, line(), "--endpoint", "/v1/unknown", exit_code=2)
    assert "'/v1/unknown' is not an endpoint of a batch" in " ".join(told)


def test_a_line_too_large(api: httpx.Client, tenora: Tenora, key: str, path: Path) -> None:
    content = line() + line("2", prompt="x" * 2**20)
    [(number, code, message)] = problems(api, content)
    assert (number, code) == (2, "too_large")
    assert message.startswith("The line is longer than 1048576 bytes")
    assert run(tenora, key, path, content, exit_code=1) == [f"- Line 2: {message}", NO_LINE_RAN]


NO_LINE_RAN = "No line ran. Correct the input, then run the command again."


@pytest.mark.slow
def test_a_line_too_many(api: httpx.Client, tenora: Tenora, key: str, path: Path) -> None:
    content = b"".join(line(str(number)) for number in range(50_001))
    message = "The file has more than 50000 lines, which is the limit. Split it into several batches."
    assert problems(api, content) == [(50_001, "too_many_lines", message)]
    assert run(tenora, key, path, content, exit_code=1) == [f"- Line 50001: {message}", NO_LINE_RAN]


def test_a_model_that_the_key_may_not_use(
    site: tuple[str, str], tenora: Tenora, slug: str, path: Path, adapter_folder: Path
) -> None:
    publishing = new_key(site, slug, scopes=["adapters:read", "adapters:write"])
    for adapter in ("prices", "margins"):
        tenora("adapters", "push", str(adapter_folder), "--adapter", adapter, TENORA_KEY=publishing)
    key = new_key(site, slug, adapters=["prices"])
    with client_of(site, key) as api:
        [(number, code, message)] = problems(api, line(model="prices") + line("2", model="margins"))
        assert (number, code) == (2, "insufficient_scope")
        told = run(tenora, key, path, line(model="prices") + line("2", model="margins"), exit_code=1)
        assert told == [f"- Line 2: {message}", NO_LINE_RAN]
        answer = refused(create(api, upload(api, line()).json()["id"], tenora={"model": "margins"}))
        assert answer == (403, "insufficient_scope", message)
        [refusal] = run(tenora, key, path, line(), "--model", "margins", exit_code=1)
        assert refusal.startswith(f"{message[:-1]} (403, request ")


def test_a_file_of_another_tenant(
    site: tuple[str, str], api: httpx.Client, tenora: Tenora, new_slug: Callable[[], str], tmp_path: Path
) -> None:
    other = new_key(site, new_tenant(site, new_slug()))
    file_id = upload(api, line()).json()["id"]
    with client_of(site, other) as attacker:
        status, code, message = refused(create(attacker, file_id))
    assert (status, code, message) == (404, "not_found", f"There is no file {file_id!r}.")
    for arguments in (("show", file_id), ("download", file_id, str(tmp_path / "copy")), ("delete", file_id, "--yes")):
        result = tenora("files", *arguments, TENORA_KEY=other, exit_code=1)
        assert result.stderr.startswith(f"error: {message[:-1]} (404, request ")
    assert not (tmp_path / "copy").exists()


def test_a_file_that_has_expired(api: httpx.Client, server_home: Path) -> None:
    file_id = str(upload(api, line()).json()["id"])
    # An unfinished batch, which the fake engine never ends, keeps the file from being swept.
    assert create(api, file_id).status_code == 200
    with closing(sqlite3.connect(server_home / "tenora.db", timeout=30)) as database, database:
        expire = "update files set expires_at = '2020-01-01 00:00:00.000000' where id = ?"
        assert database.execute(expire, [file_id]).rowcount == 1
    message = f"The file {file_id} expired at 2020-01-01 00:00:00 UTC. Upload it again."
    assert refused(create(api, file_id)) == (400, "invalid_value", message)


def test_a_run_whose_uploaded_file_is_gone(
    site: tuple[str, str], api: httpx.Client, tenora: Tenora, key: str, path: Path
) -> None:
    """As if the command was killed before the batch, and run again after the file's time."""
    path.write_bytes(line())
    file_id = str(upload(api, line()).json()["id"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tenora_client.batches.service.ServerBatches.create", _killed)
        patch.setattr("tenora_client.batches.service.ServerBatches.upload", lambda *_: _File(file_id))
        tenora("batch", "run", str(path), TENORA_KEY=key, exit_code=130)
    assert api.delete(f"/v1/files/{file_id}").status_code == 200
    result = tenora("batch", "run", str(path), TENORA_KEY=key, exit_code=1)
    [told] = result.stderr.splitlines()
    assert told.startswith(f"error: There is no file {file_id!r} (404, request ")
    assert [left.name for left in path.parent.iterdir()] == [path.name]


def test_a_budget_too_small_for_the_quote(
    site: tuple[str, str], api: httpx.Client, tenora: Tenora, slug: str, key: str, path: Path
) -> None:
    post(site, f"/admin/tenants/{slug}", {"limits": {"tokens_per_day": 10}}, "PATCH")
    content = b"".join(line(str(number)) for number in range(5))
    [(number, code, message)] = problems(api, content)
    assert (number, code) == (None, "insufficient_quota")
    assert message.startswith("The batch can use up to ")
    assert "tokens_per_day of this tenant leaves " in message
    assert run(tenora, key, path, content, exit_code=1) == [f"No line ran. {message}"]
