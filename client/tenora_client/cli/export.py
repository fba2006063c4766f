"""``tenora adapters export``: download the two files of a version as they were uploaded."""

from pathlib import Path
from typing import Annotated

import typer

from tenora_client.cli.arguments import TenantOption, no_version, version_name
from tenora_client.cli.connection import Json, Key, Url, connect_as_admin
from tenora_client.cli.output import FAILED, USAGE, emit_json, emit_line, fail
from tenora_client.exporting import DamagedDownload, ExportedFile, check_version, new_folder
from tenora_client.folders import CONFIG_FILE, WEIGHTS_FILE
from tenora_client.transport import Api, adapters_path


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
        fail(
            f"Cannot write {error.filename or folder}: {error.strerror}. Nothing was kept. Free space or mend the "
            "folder's permissions, then run the command again."
        )
    if as_json:
        emit_json({"version": version, "folder": str(folder), "digests": digests})
    else:
        emit_line(str(folder))


def download(api: Api, path: str, folder: Path) -> dict[str, str]:
    """Download a version's two files into a new or empty folder.

    Returns:
        Digest of each file by name, as ``sha256:HEX``.
    """
    expected, digests = api.call("GET", path)["digest"], {}
    try:
        with new_folder(folder) as part:
            for name in (CONFIG_FILE, WEIGHTS_FILE):
                with api.download(f"{path}/files/{name}") as answer, ExportedFile(part, name) as file:
                    for chunk in answer.chunks:
                        file.write(chunk)
                digests[name] = file.checked(answer.headers)
            check_version(expected, digests)
    except DamagedDownload as error:
        fail(str(error), FAILED)
    return {name: f"sha256:{digest}" for name, digest in digests.items()}
