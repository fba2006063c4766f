"""``tenora adapters push`` against a live server: folders, archives, resumed uploads and retries."""

import asyncio
import hashlib
import json
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

from adapters.stores.local import LocalStore
from app.main import create_app
from app.settings import Settings
from tenora_client import upload as sending
from tenora_client.transport import Api, Refused, adapters_path
from tenora_client.upload import Sender, Source, bytes_there, lanes, persistent
from tests.support.cli import Tenora
from tests.support.live_server import live_server
from tests.support.serving import MAX_RANK, NoEngine, peft_files, save_base, set_up

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
def store(server_home):
    """The server's blob store."""
    return LocalStore(server_home / "blobs")


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(sending, "_PAUSES_S", (0.0, 0.0, 0.0))


def sources(folder: Path) -> dict[str, Source]:
    return {name: Source.read(folder / name, lambda _: None) for name in FILES}


def begun(api: Api, tenant: str, folder: Path, **options: Any) -> tuple[Sender, dict[str, Any]]:
    """Begin an upload and send no bytes of it."""
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
    assert f"Resuming upload {upload['id']}. The server has {size} bytes already." in result.stderr
    assert json.loads(result.stdout)["name"] == "prices@1"
    assert api.call("GET", adapters_path(tenant, "prices", "uploads", upload["id"]))["state"] == "done"


@pytest.mark.parametrize("flags", [("--label", "a=b"), ("--part-mb", "0.5")])
def test_other_options_are_another_upload(tenora, tenant, api, adapter_folder, flags):
    _, upload = begun(api, tenant, adapter_folder)
    result = tenora(
        "adapters", "push", str(adapter_folder), "--tenant", tenant, "--adapter", "prices", "--json", *flags
    )
    assert "Resuming" not in result.stderr
    assert api.call("GET", adapters_path(tenant, "prices", "uploads", upload["id"]))["state"] == "open"


def test_an_interrupt_says_how_to_resume(tenora, tenant, adapter_folder, monkeypatch):
    def interrupt(self: Sender, upload: dict[str, Any]) -> Any:
        raise KeyboardInterrupt

    push = ("adapters", "push", str(adapter_folder), "--tenant", tenant, "--adapter", "prices")
    with monkeypatch.context() as patched:
        patched.setattr(Sender, "send", interrupt)
        result = tenora(*push, exit_code=130)
    assert "Interrupted. Run the same command again to resume." in result.stderr
    assert result.stdout == ""
    assert "Resuming upload" in tenora(*push).stderr


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
    assert "model.save_pretrained" in result.stderr


def test_what_cannot_be_pushed_gets_the_next_step(tenora, tenant, adapter_folder, tmp_path):
    def said(path: Path, *more: str, exit_code: int = 2) -> str:
        result = tenora("adapters", "push", str(path), *more, "--tenant", tenant, exit_code=exit_code)
        return result.stderr

    named = ("--adapter", "prices")
    (tmp_path / "empty").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("no archive")
    (tmp_path / "weights.bin").write_bytes(b"PK")
    shutil.copytree(adapter_folder, tmp_path / "two" / "a")
    shutil.copytree(adapter_folder, tmp_path / "two" / "b")
    assert "does not exist. Give the folder" in said(tmp_path / "absent", *named)
    assert "holds no adapter. Give the folder" in said(tmp_path / "empty", *named)
    assert "a whole model, not an adapter" in said(tmp_path / "model", *named)
    assert "neither a folder nor a .tar.gz or .zip" in said(tmp_path / "notes.txt", *named)
    assert "with --convert" in said(tmp_path / "weights.bin", *named)
    assert "Push its folder" in said(adapter_folder / FILES[1], *named)
    assert f"{tmp_path / 'two' / 'a'} and {tmp_path / 'two' / 'b'}" in said(tmp_path / "two", *named)
    assert f"push {adapter_folder} --adapter NAME" in said(adapter_folder)
    assert "A valid name is bad-name." in said(adapter_folder, "--adapter", "Bad Name!")


def test_a_trainer_s_output_has_its_newest_checkpoint_proposed(tenora, tenant, adapter_folder, tmp_path):
    for step in (9, 100, 20):
        shutil.copytree(adapter_folder, tmp_path / f"checkpoint-{step}")
    push = ("adapters", "push", "--tenant", tenant, "--adapter", "prices")
    assert f"Push the newest one, {tmp_path / 'checkpoint-100'}" in tenora(*push, str(tmp_path), exit_code=2).stderr
    # With an adapter at the top level, checkpoints are ignored, as in an archive.
    for name in FILES:
        shutil.copy(adapter_folder / name, tmp_path)
    assert tenora.json(*push, str(tmp_path))["name"] == "prices@1"


def test_the_shallowest_adapter_of_a_folder_is_pushed(tenora, tenant, adapter_folder, tmp_path):
    shutil.copytree(adapter_folder, tmp_path / "out" / "final")
    shutil.copytree(adapter_folder, tmp_path / "out" / "old" / "deep")
    result = tenora("adapters", "push", str(tmp_path), "--tenant", tenant, "--adapter", "prices")
    assert f"Pushing the adapter in {tmp_path / 'out' / 'final'}" in result.stderr


def bad_config(adapter_folder: Path, folder: Path, **values: Any) -> Path:
    shutil.copytree(adapter_folder, folder)
    config = json.loads((folder / FILES[0]).read_text()) | values
    (folder / FILES[0]).write_text(json.dumps(config))
    return folder


def test_a_config_is_checked_before_anything_is_sent(tenora, tenant, api, adapter_folder, tmp_path, monkeypatch):
    folder = bad_config(adapter_folder, tmp_path / "bad", use_dora=True, r=8)
    monkeypatch.setattr(Sender, "begin", lambda *_: pytest.fail("an upload was begun"))
    push = ("adapters", "push", str(folder), "--tenant", tenant, "--adapter", "prices")
    said = tenora(*push, exit_code=1).stderr
    assert "- use_dora is True" in said
    assert "The same holds for 5 more" in said
    assert "Nothing was sent." in said
    error = json.loads(tenora(*push, "--json", exit_code=1).stderr)["error"]
    assert error["code"] == "adapter_rejected"
    assert [(reason["code"], reason["count"]) for reason in error["reasons"]] == [
        ("unsupported_feature", 1),
        ("rank_mismatch", 6),
    ]
    assert api.call("GET", adapters_path(tenant, "prices", "uploads"))["data"] == []


def pickled(adapter_folder: Path, folder: Path, found: object = None) -> Path:
    """Write the adapter with its weights in ``torch.save`` format."""
    folder.mkdir()
    shutil.copy(adapter_folder / FILES[0], folder)
    torch.save(load_file(adapter_folder / FILES[1]) if found is None else found, folder / "adapter_model.bin")
    return folder


def test_a_pickle_is_converted_on_this_machine(tenora, tenant, adapter_folder, tmp_path):
    folder = pickled(adapter_folder, tmp_path / "pickle")
    push = ("adapters", "push", str(folder), "--tenant", tenant, "--adapter", "prices")
    assert "Push again with --convert" in tenora(*push, exit_code=2).stderr
    first = tenora.json(*push, "--convert")
    assert tenora.json(*push, "--convert") == first
    assert sorted(path.name for path in folder.iterdir()) == [FILES[0], "adapter_model.bin"]
    tenora("adapters", "export", "prices@1", str(tmp_path / "out"), "--tenant", tenant)
    converted, original = load_file(tmp_path / "out" / FILES[1]), load_file(adapter_folder / FILES[1])
    assert all(torch.equal(converted[name], tensor) for name, tensor in original.items())


class Evil:
    """Object that runs code when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("touched"),)


@pytest.mark.parametrize("found", [{"a": Evil()}, [1, 2], {"a": "text"}])
def test_a_pickle_of_more_than_tensors_is_not_read(
    tenora, tenant, adapter_folder, tmp_path, monkeypatch, found: object
):
    folder = pickled(adapter_folder, tmp_path / "pickle", found)
    monkeypatch.chdir(tmp_path)
    push = ("adapters", "push", str(folder), "--tenant", tenant, "--adapter", "prices", "--convert")
    assert "Save the adapter again" in tenora(*push, exit_code=2).stderr
    assert not (tmp_path / "touched").exists()


def test_a_conversion_without_torch_says_what_to_install(tenora, tenant, adapter_folder, tmp_path, monkeypatch):
    folder = pickled(adapter_folder, tmp_path / "pickle")
    monkeypatch.setitem(sys.modules, "torch", None)
    push = ("adapters", "push", str(folder), "--tenant", tenant, "--adapter", "prices", "--convert")
    assert "pip install torch safetensors" in tenora(*push, exit_code=2).stderr


def test_another_base_is_a_warning_of_push_and_show(tenora, tenant, adapter_folder, tmp_path):
    folder = bad_config(adapter_folder, tmp_path / "other", base_model_name_or_path="meta-llama/Llama-3.1-8B")
    pushed = tenora("adapters", "push", str(folder), "--tenant", tenant, "--adapter", "prices")
    shown = tenora("adapters", "show", "prices@1", "--tenant", tenant)
    for said in (pushed.stderr, shown.stderr):
        assert "warning: adapter_config.json says that the adapter was trained on meta-llama/Llama-3.1-8B" in said


@pytest.mark.parametrize(
    ("folder_has", "said"), [("{{ other }}", True), ("{{ base }}", False), ("{{ base }}\n", False), (None, False)]
)
def test_a_chat_template_that_differs_is_not_used(
    tmp_path_factory, tmp_path, clean_environment, adapter_folder, folder_has, said
):
    base = save_base(tmp_path_factory.mktemp("base") / "tiny-llama")
    (base / "chat_template.jinja").unlink()  # it would come before this one
    (base / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ base }}"}))
    settings = Settings(
        home=tmp_path / "home", base_model=str(base), engine={"max_lora_rank": MAX_RANK, "max_loras": 4}
    )
    key = asyncio.run(set_up(settings))
    folder = shutil.copytree(adapter_folder, tmp_path / "adapter")
    if folder_has is not None:
        (folder / "chat_template.jinja").write_text(folder_has)
    with live_server(create_app(settings, engine=NoEngine())) as url:
        tenora = Tenora({"TENORA_URL": url, "TENORA_KEY": key, "TENORA_HOME": str(tmp_path / "none"), "COLUMNS": "200"})
        tenora("tenants", "create", "retail")
        result = tenora("adapters", "push", str(folder), "--tenant", "retail", "--adapter", "prices")
    assert ("chat template differs from that of the base tiny-llama and is not used" in result.stderr) is said
    assert ("tenora adapters describe prices@1 --defaults FILE" in result.stderr) is said


def test_commands_that_are_mistyped_get_the_next_step(tenora, tenant, adapter_folder, tmp_path):
    tenora("adapters", "push", str(adapter_folder), "--tenant", tenant, "--adapter", "prices")
    of = ("--tenant", tenant)

    def said(*command: str, exit_code: int) -> str:
        return " ".join(tenora("adapters", *command, exit_code=exit_code).stderr.split())

    out = str(tmp_path / "out")
    assert "Did you mean 'prices'?" in said("show", "prcies", *of, exit_code=1)
    assert "tenora adapters list" in said("show", "zzz", *of, exit_code=1)
    assert "The newest is prices@1" in said("show", "prices@77", *of, exit_code=1)
    assert "The newest is prices@1" in said("export", "prices@9", out, *of, exit_code=1)
    assert "Write prices@N" in said("export", "prices", out, *of, exit_code=2)
    named = ("--adapter", "x", *of)
    assert "Write hf://org/repo@COMMIT" in said("import", "hf://org/repo", *named, exit_code=2)
    assert "Write hf://org/repo@COMMIT" in said("import", "hf://org/repo@main/sub", *named, exit_code=2)
    assert "git ls-remote" in said("import", "https://huggingface.co/org/repo", *named, exit_code=2)
    assert "does not exist here" in said("import", "nowhere", *named, exit_code=2)
    assert "import hf://org/repo --adapter NAME" in said("import", "hf://org/repo", *of, exit_code=2)


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
    # Mark all parts as received. Only the server knows that they are missing.
    full = {name: {**file, "received": list(range(1, file["parts"] + 1))} for name, file in upload["files"].items()}
    assert sender.send({**upload, "files": full})["version"] == 1


def test_the_same_files_repair_a_version_whose_bytes_were_lost(tenora, tenant, store, tmp_path):
    peft_files(tmp_path / "made", seed=23)
    push = ("adapters", "push", str(tmp_path / "made"), "--tenant", tenant, "--adapter", "prices")
    first = tenora.json(*push)
    digest = hashlib.sha256((tmp_path / "made" / FILES[1]).read_bytes()).hexdigest()
    store.delete(digest)
    assert tenora.json(*push) == first
    assert store.size(digest) == (tmp_path / "made" / FILES[1]).stat().st_size


def test_the_same_files_replace_a_blob_that_was_cut_off(tenora, tenant, store, tmp_path):
    peft_files(tmp_path / "made", seed=24)
    push = ("adapters", "push", str(tmp_path / "made"), "--tenant", tenant, "--adapter", "prices")
    first = tenora.json(*push)
    whole = (tmp_path / "made" / FILES[1]).read_bytes()
    blob = store._path(hashlib.sha256(whole).hexdigest())
    blob.unlink()
    blob.write_bytes(whole[:10])
    assert tenora.json(*push) == first
    assert blob.read_bytes() == whole


def test_damaged_bytes_of_the_same_size_are_named(tenora, tenant, store, tmp_path):
    """The server must not report success: the blob stays damaged until an operator removes it."""
    peft_files(tmp_path / "made", seed=25)
    push = ("adapters", "push", str(tmp_path / "made"), "--tenant", tenant, "--adapter", "prices")
    tenora.json(*push)
    whole = (tmp_path / "made" / FILES[1]).read_bytes()
    blob = store._path(hashlib.sha256(whole).hexdigest())
    blob.unlink()
    blob.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "_PAUSES_S", ())
        assert "are damaged" in tenora(*push, exit_code=1).stderr
    blob.unlink()
    tenora.json(*push)
    assert blob.read_bytes() == whole


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
