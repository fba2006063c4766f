"""Archives and options as parts of an upload."""

import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts, running_site


def _versions(unit: Unit) -> str:
    return f"/admin/tenants/{unit.slug}/adapters/pricing/versions"


def _members(files: PeftFiles) -> dict[str, bytes]:
    return {"adapter_config.json": files.config, "adapter_model.safetensors": files.weights, "README.md": b"# card"}


def tar_of(members: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(f"my-adapter/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return raw.getvalue()


def zip_of(members: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return raw.getvalue()


def _archive(raw: bytes, options: object = None) -> dict[str, tuple[str, bytes]]:
    form = {"archive": ("anything.bin", raw)}
    return form if options is None else form | {"options": ("options.json", json.dumps(options).encode())}


@pytest.fixture(scope="module")
def narrow(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    limits = {"config_bytes": 4096, "weights_bytes": 2**17}
    with running_site(tmp_path_factory.mktemp("narrow"), base, limits=limits) as site:
        yield site


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_an_archive_is_the_same_version_as_its_files(
    site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles, pack: object
) -> None:
    assert callable(pack)
    first = admin.post(_versions(unit), files=_archive(pack(_members(files))))
    assert first.status_code == 201, first.text
    second = admin.post(_versions(unit), files=parts(files))
    assert (second.status_code, second.json()["digest"]) == (200, first.json()["digest"])
    assert not list(site.spool.glob("*/*"))


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_an_archive_of_a_trainer_s_whole_output(
    admin: httpx.Client, unit: Unit, files: PeftFiles, other_files: PeftFiles, pack: object
) -> None:
    assert callable(pack)
    deep = {f"checkpoint-10/{name}": data for name, data in _members(other_files).items()}
    extras = {"checkpoint-10/optimizer.pt": b"x", "runs/events": b"x", "adapter_model.bin": b"x"}
    published = admin.post(_versions(unit), files=_archive(pack(deep | extras | _members(files))))
    assert published.status_code == 201, published.text
    same = admin.post(_versions(unit), files=parts(files))
    assert (same.status_code, same.json()["digest"]) == (200, published.json()["digest"])


def test_a_hostile_archive_is_refused_with_every_reason(site: Site, admin: httpx.Client, unit: Unit) -> None:
    raw = zip_of({"../../evil": b"x", "adapter_model.bin": b"x", "adapter_config.json": b"{}"})
    answer = admin.post(_versions(unit), files=_archive(raw))
    assert answer.status_code == 422
    assert [reason["code"] for reason in answer.json()["error"]["reasons"]] == ["unsafe_path", "pickle_format"]
    assert not list(site.spool.glob("*/*"))
    assert not list(site.settings.home.rglob("evil"))


def test_an_archive_beside_files(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    answer = admin.post(_versions(unit), files=_archive(tar_of(_members(files))) | parts(files))
    assert [(reason["code"], reason["field"]) for reason in answer.json()["error"]["reasons"]] == [
        ("unexpected_part", "adapter_config.json"),
        ("unexpected_part", "adapter_model.safetensors"),
    ]


def test_caps_hold_for_what_is_inside(narrow: Site) -> None:
    with narrow.client(narrow.admin_key) as admin:
        unit = make_unit(admin)
        inside = zip_of({"adapter_config.json": b" " * 4097, "adapter_model.safetensors": b"x"})
        answer = admin.post(_versions(unit), files=_archive(inside))
        assert [reason["code"] for reason in answer.json()["error"]["reasons"]] == ["member_too_large"]
        answer = admin.post(_versions(unit), files=_archive(b"x" * (4096 + 2**17 + 1)))
        assert (answer.status_code, answer.json()["error"]["param"]) == (413, "archive")


def test_options_beside_an_upload(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    options = {"alias": "canary", "labels": {"team": "pricing"}}
    raw = tar_of(_members(files))
    for wrong, param in (
        ({"surprise": 1}, "options.surprise"),
        ({"alias": 3}, "options.alias"),
        ({"labels": 1}, "labels"),
    ):
        answer = admin.post(_versions(unit), files=_archive(raw, wrong))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    published = admin.post(_versions(unit), files=_archive(raw, options))
    assert published.status_code == 201, published.text
    assert published.json()["aliases"] == ["canary"]


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"a": 1, "a": 2}', b"\xff"])
def test_options_that_are_no_json_object(admin: httpx.Client, unit: Unit, files: PeftFiles, raw: bytes) -> None:
    form = parts(files) | {"options": ("options", raw)}
    answer = admin.post(_versions(unit), files=form)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "options")
