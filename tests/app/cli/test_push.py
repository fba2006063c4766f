"""``tenora adapters push`` against a live server: folders, archives, what is resumed, what is tried again."""

import hashlib
import json
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli import sending
from app.cli.client import Api, Refused, adapters_path
from app.cli.sending import Sender, Source, bytes_there, lanes, persistent
from tests.app.serving import peft_files

FILES = ("adapter_config.json", "adapter_model.safetensors")


@pytest.fixture
def tenant(tenora, new_slug):
    slug = new_slug()
    tenora("tenants", "create", slug)
    return slug


@pytest.fixture
def api(site):
    url, key = site
    with Api(url, key) as api:
        yield api


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(sending, "_PAUSES_S", (0.0, 0.0, 0.0))


def sources(folder: Path) -> dict[str, Source]:
    return {name: Source.read(folder / name, lambda _: None) for name in FILES}


def begun(api: Api, tenant: str, folder: Path, **options: Any) -> tuple[Sender, dict[str, Any]]:
    """An upload that nobody has sent anything of."""
    sender = Sender(api, adapters_path(tenant, "prices", "uploads"), sources(folder))
    return sender, sender.begin(options, None)


def test_an_archive_is_pushed(tenora, tenant, adapter_folder, tmp_path):
    with tarfile.open(tmp_path / "adapter.tar.gz", "w:gz") as archive:
        archive.add(adapter_folder, "prices")
    with zipfile.ZipFile(tmp_path / "adapter.zip", "w") as archive:
        for name in FILES:
            archive.write(adapter_folder / name, name)
    push = ("--tenant", tenant, "--adapter", "prices")
    first = tenora.json("adapters", "push", str(tmp_path / "adapter.tar.gz"), *push)
    assert first["provenance"]["source"]["kind"] == "archive"
    assert tenora.json("adapters", "push", str(tmp_path / "adapter.zip"), *push) == first
    assert tenora.json("adapters", "push", str(adapter_folder), *push) == first


def test_what_is_said_of_the_version_arrives(tenora, tenant, adapter_folder, tmp_path):
    (tmp_path / "card.md").write_text("trained on <b>prices</b>")
    (tmp_path / "defaults.json").write_text(json.dumps({"temperature": 0.2}))
    version = tenora.json(
        "adapters", "push", str(adapter_folder), "--tenant", tenant, "--adapter", "prices", "--alias", "canary",
        "--label", "team=pricing", "--label", "stage=test", "--card", str(tmp_path / "card.md"),
        "--training-run", "https://runs.example/7", "--defaults", str(tmp_path / "defaults.json"), "--allow-no-effect",
    )  # fmt: skip
    assert version["labels"] == {"team": "pricing", "stage": "test"}
    assert version["card"] == "trained on <b>prices</b>"
    assert version["defaults"] == {"temperature": 0.2}
    assert version["provenance"]["training_run"] == "https://runs.example/7"
    assert "canary" in version["aliases"]


def test_an_upload_under_way_is_gone_on_with(tenora, tenant, api, adapter_folder):
    sender, upload = begun(api, tenant, adapter_folder)
    only_config = {**upload, "files": {FILES[0]: upload["files"][FILES[0]]}}
    sender._send_missing(only_config)
    result = tenora("adapters", "push", str(adapter_folder), "--tenant", tenant, "--adapter", "prices", "--json")
    size = (adapter_folder / FILES[0]).stat().st_size
    assert f"going on with upload {upload['id']}: {size} bytes are there already" in result.stderr
    assert json.loads(result.stdout)["name"] == "prices@1"
    assert api.call("GET", adapters_path(tenant, "prices", "uploads", upload["id"]))["state"] == "done"


@pytest.mark.parametrize("flags", [("--label", "a=b"), ("--part-mb", "0.5")])
def test_other_options_are_another_upload(tenora, tenant, api, adapter_folder, flags):
    _, upload = begun(api, tenant, adapter_folder)
    result = tenora(
        "adapters", "push", str(adapter_folder), "--tenant", tenant, "--adapter", "prices", "--json", *flags
    )
    assert "going on" not in result.stderr
    assert api.call("GET", adapters_path(tenant, "prices", "uploads", upload["id"]))["state"] == "open"


def test_an_upload_that_ended_meanwhile_is_begun_again(tenora, tenant, api, adapter_folder, monkeypatch):
    _, upload = begun(api, tenant, adapter_folder)
    resume = Sender.resume

    def resume_and_end(self: Sender, *arguments: Any) -> Any:
        found = resume(self, *arguments)
        api.call("DELETE", adapters_path(tenant, "prices", "uploads", upload["id"]))
        return found

    monkeypatch.setattr(Sender, "resume", resume_and_end)
    assert (
        tenora.json("adapters", "push", str(adapter_folder), "--tenant", tenant, "--adapter", "prices")["version"] == 1
    )


def test_a_missing_file_is_named_before_anything_is_sent(tenora, tenant, adapter_folder, tmp_path):
    shutil.copy(adapter_folder / FILES[0], tmp_path)
    result = tenora("adapters", "push", str(tmp_path), "--tenant", tenant, "--adapter", "prices", exit_code=2)
    assert FILES[1] in result.stderr


def test_a_file_that_changes_under_way_is_refused(tenora, tenant, tmp_path, monkeypatch):
    files = peft_files(tmp_path / "made", seed=3)
    folder = tmp_path / "made"
    send = Sender.send

    def change_and_send(self: Sender, upload: dict[str, Any]) -> Any:
        (folder / FILES[1]).write_bytes(files.weights[:-4] + bytes(4))
        return send(self, upload)

    monkeypatch.setattr(Sender, "send", change_and_send)
    result = tenora("adapters", "push", str(folder), "--tenant", tenant, "--adapter", "prices", exit_code=1)
    assert hashlib.sha256(files.weights).hexdigest() in result.stderr


def test_a_part_is_sent_again_when_the_way_fails(api, tenant, adapter_folder, no_pauses, monkeypatch):
    told: list[int] = []
    path = adapters_path(tenant, "prices", "uploads")
    sender = Sender(api, path, sources(adapter_folder), sent=told.append)
    upload, put, failures = sender.begin({}, None), Api.put, iter([True, True])

    def cut_twice(self: Api, path: str, content: Any, headers: Any) -> None:
        if next(failures, False):
            next(iter(content))
            next(iter(content), None)
            raise httpx.WriteError("cut")
        put(self, path, content, headers)

    monkeypatch.setattr(Api, "put", cut_twice)
    assert sender.send(upload)["version"] == 1
    assert sum(told) == sum(file["size"] for file in upload["files"].values())
    assert min(told) < 0


def test_parts_that_the_server_lost_are_sent_again(api, tenant, adapter_folder):
    sender, upload = begun(api, tenant, adapter_folder)
    # As if all had arrived: only the server knows better.
    full = {name: {**file, "received": list(range(1, file["parts"] + 1))} for name, file in upload["files"].items()}
    assert sender.send({**upload, "files": full})["version"] == 1


def test_persistence_ends(no_pauses):
    calls = []

    def refuse() -> None:
        calls.append(1)
        raise Refused(503, {"error": {"message": "busy"}}, None)

    with pytest.raises(Refused):
        persistent(refuse)
    assert len(calls) == 4

    def refuse_for_good() -> None:
        calls.append(1)
        raise Refused(422, {"error": {"message": "no"}}, None)

    with pytest.raises(Refused):
        persistent(refuse_for_good)
    assert len(calls) == 5


@pytest.mark.parametrize(
    ("size", "part_bytes", "expected"),
    [
        (1, 2**18, 1),
        (500_000_000, 2**19, 4),
        (500_000_000, 5 * 2**20, 1),
        (4 * 2**30, 5 * 2**20, 4),
        (10**12, 2**26, 4),
    ],
)
def test_what_is_under_way_stays_small(size, part_bytes, expected):
    upload = {"files": {"weights": {"size": size, "part_bytes": part_bytes}}}
    assert lanes(upload) == expected


def test_bytes_there_count_the_last_part_as_it_is():
    upload = {"files": {"weights": {"size": 25, "part_bytes": 10, "received": [1, 3]}}}
    assert bytes_there(upload) == 15
