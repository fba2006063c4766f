"""``adapters validate``: every reason at once, from a server or offline; nothing is stored."""

import json
from pathlib import Path

import pytest

from tests.support.cli import Tenora
from tests.support.mistaken_adapters import CONFIG, WEIGHTS, make_mistaken_folders
from tests.support.serving import save_base


@pytest.fixture
def folders(adapter_folder: Path, tmp_path: Path) -> Path:
    make_mistaken_folders(tmp_path / "work", adapter_folder)
    return tmp_path / "work"


@pytest.fixture
def tenant(tenora: Tenora, new_slug: object) -> str:
    slug: str = new_slug()  # type: ignore[operator]
    tenora("tenants", "create", slug)
    return slug


def test_a_good_adapter_names_the_next_step(tenora: Tenora, adapter_folder: Path, tenant: str) -> None:
    result = tenora("adapters", "validate", str(adapter_folder), "--adapter", "quotes", "--tenant", tenant)
    assert f"tenora adapters push {adapter_folder} --adapter quotes" in result.stderr
    assert "rank" in result.stdout
    assert tenora.json("adapters", "list", "--tenant", tenant) == []


@pytest.mark.parametrize("name", ["badrank", "badjson", "dora"])
def test_a_bad_adapter_gets_every_reason(tenora: Tenora, folders: Path, tenant: str, name: str) -> None:
    result = tenora("adapters", "validate", str(folders / name), "--tenant", tenant, exit_code=1)
    assert "would refuse" in result.stderr
    verdict = json.loads(
        tenora("adapters", "validate", str(folders / name), "--tenant", tenant, "--json", exit_code=1).stdout
    )
    assert verdict["valid"] is False
    for reason in verdict["reasons"]:
        assert reason["message"] in result.stdout


@pytest.mark.parametrize("name", ["empty", "confonly", "pickle", "base", "nosuch"])
def test_a_folder_without_an_adapter_is_2(alone: Tenora, folders: Path, name: str) -> None:
    error = alone("adapters", "validate", str(folders / name), exit_code=2).stderr
    assert str(folders / name) in error
    assert error.count("\n") == 1


def test_only_the_header_is_sent(tenora: Tenora, adapter_folder: Path, tenant: str, tmp_path: Path) -> None:
    """A sparse file that is larger than any upload is checked within a moment: its bytes do not travel."""
    weights = (adapter_folder / WEIGHTS).read_bytes()
    (tmp_path / CONFIG).write_bytes((adapter_folder / CONFIG).read_bytes())
    with (tmp_path / WEIGHTS).open("wb") as file:
        file.write(weights)
        file.truncate(2**40)
    verdict = json.loads(
        tenora("adapters", "validate", str(tmp_path), "--tenant", tenant, "--json", exit_code=1).stdout
    )
    assert verdict["reasons"][0]["code"] == "too_large"


def test_other_files_are_named(tenora: Tenora, folders: Path, adapter_folder: Path, tenant: str) -> None:
    folder = folders / "confonly"
    (folder / WEIGHTS).write_bytes((adapter_folder / WEIGHTS).read_bytes())
    (folder / "notes.txt").write_text("x")
    assert "notes.txt" in tenora("adapters", "validate", str(folder), "--tenant", tenant).stderr


def test_a_base_checks_without_a_server(alone: Tenora, adapter_folder: Path, folders: Path, tmp_path: Path) -> None:
    base = save_base(tmp_path / "tiny")
    assert "No reason against" in alone("adapters", "validate", str(adapter_folder), "--base", str(base)).stderr
    options = ["--base", str(base), "--max-lora-rank", "2"]
    verdict = json.loads(alone("adapters", "validate", str(adapter_folder), *options, "--json", exit_code=1).stdout)
    assert [reason["code"] for reason in verdict["reasons"]] == ["rank_too_large"]
    alone("adapters", "validate", str(folders / "dora"), "--base", str(base), exit_code=1)
    error = alone("adapters", "validate", str(adapter_folder), "--base", str(folders / "base"), exit_code=2).stderr
    assert "is not a base" in error


def test_a_base_needs_the_servers_environment(
    alone: Tenora, adapter_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenora_client.cli.plugins.entry_points", lambda **_: ())
    error = alone("adapters", "validate", str(adapter_folder), "--base", str(tmp_path), exit_code=2).stderr
    assert "make environment" in error
