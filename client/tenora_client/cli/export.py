"""``tenora adapters export``: download the two files of a version as they were uploaded."""

import base64
import binascii
import hashlib
import re
import shutil
import uuid
from pathlib import Path
from typing import Annotated, Optional

import typer

from tenora_client.cli.arguments import TenantOption, no_version, version_name
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.output import FAILED, USAGE, emit_json, emit_line, fail
from tenora_client.digests import content_digest
from tenora_client.folders import CONFIG_FILE, WEIGHTS_FILE
from tenora_client.transport import Api, adapters_path

_REPR_DIGEST = re.compile(r"(?:.*,)?\s*sha-256=:([A-Za-z0-9+/=]+):.*", re.ASCII)


def _version(text: str) -> str:
    if "@" not in text:
        raise no_version(text)
    return version_name(text)


_Version = Annotated[str, typer.Argument(metavar="ADAPTER@N", parser=_version, help="Version of an adapter")]
_Folder = Annotated[Path, typer.Argument(file_okay=False, metavar="DIR", help="New or empty folder")]


def export(
    version: _Version,
    folder: _Folder,
    tenant: TenantOption = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Download a version's files into a new folder, which appears once both files match their digests."""
    adapter, _, number = version.partition("@")
    path = adapters_path(tenant, adapter, "versions", number)
    folder = folder.resolve()
    try:
        if folder.exists() and any(folder.iterdir()):
            fail(f"{folder} is not empty. Give a new or an empty folder.", USAGE)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with connect_as_admin(url, key, as_json=as_json) as api:
            digests = download(api, path, folder)
    except OSError as error:
        fail(f"Cannot write {error.filename or folder}: {error.strerror}.", USAGE)
    if as_json:
        emit_json({"version": version, "folder": str(folder), "digests": digests})
    else:
        emit_line(str(folder))


def download(api: Api, path: str, folder: Path) -> dict[str, str]:
    """Download a version's two files into a new or empty folder.

    Returns:
        Digest of each file by name, as ``sha256:HEX``.
    """
    expected = api.call("GET", path)["digest"]
    part = folder.parent / f".{folder.name}-{uuid.uuid4().hex}"
    part.mkdir()
    try:
        digests = {
            name: _download_file(api, f"{path}/files/{name}", part / name) for name in (CONFIG_FILE, WEIGHTS_FILE)
        }
        if f"sha256:{content_digest(digests[CONFIG_FILE], digests[WEIGHTS_FILE])}" != expected:
            fail(f"The files do not match the version's digest {expected}. Try again.", FAILED)
        # A rename onto an empty folder is allowed.
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return {name: f"sha256:{digest}" for name, digest in digests.items()}


def _download_file(api: Api, path: str, target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("xb") as file, api.download(path) as answer:
        for chunk in answer.chunks:
            digest.update(chunk)
            file.write(chunk)
    if digest.digest() != _header_digest(answer.headers.get("repr-digest", "")):
        fail(f"{target.name} does not match the digest that the server sent with it. Try again.", FAILED)
    return digest.hexdigest()


def _header_digest(header: str) -> Optional[bytes]:
    match = _REPR_DIGEST.fullmatch(header)
    try:
        return base64.b64decode(match[1], validate=True) if match else None
    except binascii.Error:
        return None
