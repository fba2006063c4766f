# Generated from _async/versions.py by `make client-code`. Change that file instead.
"""Adapters and their versions: list, show, describe, retire, delete, pin, export."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tenora_client._sync.resource import Resource
from tenora_client.exporting import ExportedFile, check_version, new_folder
from tenora_client.folders import CONFIG_FILE, WEIGHTS_FILE
from tenora_client.paths import adapters_path
from tenora_client.types import Adapter, Deletion, Version

Labels = Mapping[str, str]


class Versions(Resource):
    """Adapters and their versions."""

    def list(
        self,
        *,
        labels: Labels | None = None,
        state: str | None = None,
        base: str | None = None,
        tenant: str | None = None,
    ) -> Iterator[Adapter]:
        """Yield the adapters that have a version with these labels, this state and this base."""
        return self._session.items(Adapter, adapters_path(tenant), _filters(labels, state, base))

    def show(self, adapter: str, *, tenant: str | None = None) -> Adapter:
        """Fetch an adapter with its version numbers and aliases."""
        return self._session.get(Adapter, adapters_path(tenant, adapter))

    def delete(self, adapter: str, *, force: bool = False, tenant: str | None = None) -> Deletion:
        """Delete an adapter with all its versions.

        Args:
            force: take the versions from aliases, canaries and pins that hold them.
        """
        return self._session.change(Deletion, "DELETE", adapters_path(tenant, adapter), query=_force(force))

    def set_limits(
        self, adapter: str, limits: Mapping[str, int | str | None] | None, *, tenant: str | None = None
    ) -> Adapter:
        """Set limits for all callers of an adapter. A value of None lifts a limit; None lifts all of them."""
        return self._session.change(Adapter, "PATCH", adapters_path(tenant, adapter), {"limits": limits})

    def versions(
        self,
        adapter: str,
        *,
        labels: Labels | None = None,
        state: str | None = None,
        base: str | None = None,
        tenant: str | None = None,
    ) -> Iterator[Version]:
        """Yield the versions of an adapter, newest first."""
        path = adapters_path(tenant, adapter, "versions")
        return self._session.items(Version, path, _filters(labels, state, base))

    def version(self, adapter: str, number: int, *, tenant: str | None = None) -> Version:
        """Fetch a version."""
        return self._session.get(Version, _path(tenant, adapter, number))

    def describe(
        self,
        adapter: str,
        number: int,
        *,
        labels: Labels | None = None,
        card: str | None = None,
        training_run: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        tenant: str | None = None,
    ) -> Version:
        """Replace a version's labels, card, training run or defaults. None keeps one, an empty value removes it."""
        given: dict[str, Any] = {"labels": labels, "card": card, "training_run": training_run, "defaults": defaults}
        body = {name: value for name, value in given.items() if value is not None}
        if training_run == "":
            body["training_run"] = None  # the route takes null for "none"
        return self._session.change(Version, "PATCH", _path(tenant, adapter, number), body)

    def retire(
        self, adapter: str, number: int, reason: str, *, force: bool = False, tenant: str | None = None
    ) -> Version:
        """Take a version out of service. Requests for it get the reason."""
        path, body = _path(tenant, adapter, number, "retire"), {"reason": reason}
        return self._session.change(Version, "POST", path, body, query=_force(force))

    def restore(self, adapter: str, number: int, *, tenant: str | None = None) -> Version:
        """Return a retired version to service."""
        return self._session.change(Version, "POST", _path(tenant, adapter, number, "restore"))

    def delete_version(self, adapter: str, number: int, *, force: bool = False, tenant: str | None = None) -> Deletion:
        """Delete a version.

        Args:
            force: take it from aliases, canaries and pins that hold it.
        """
        return self._session.change(Deletion, "DELETE", _path(tenant, adapter, number), query=_force(force))

    def pin(self, adapter: str, number: int, *, tenant: str | None = None) -> None:
        """Reserve a slot of the engine for a version."""
        self._session.send("PUT", _path(tenant, adapter, number, "pin"))

    def unpin(self, adapter: str, number: int, *, tenant: str | None = None) -> None:
        """Release the slot of a pinned version."""
        self._session.send("DELETE", _path(tenant, adapter, number, "pin"))

    def export(self, adapter: str, number: int, folder: str | os.PathLike[str], *, tenant: str | None = None) -> Path:
        """Download a version's two files as uploaded, into a new or empty folder, and check their digests.

        Raises:
            DamagedDownload: the files do not match their digests.
            OSError: the folder is not empty, or the disk is full. Nothing is left behind.
        """
        version = self.version(adapter, number, tenant=tenant)
        with new_folder(Path(folder)) as part:
            digests: dict[str, str] = {}
            for name in (CONFIG_FILE, WEIGHTS_FILE):
                path = _path(tenant, adapter, number, "files", name)
                with self._session.download(path) as download:
                    with ExportedFile(part, name) as file:
                        for chunk in download.chunks:
                            file.write(chunk)
                    digests[name] = file.checked(download.headers)
            check_version(version.digest, digests)
        return Path(folder)


def _path(tenant: str | None, adapter: str, number: int, *segments: str) -> str:
    return adapters_path(tenant, adapter, "versions", str(number), *segments)


def _filters(labels: Labels | None, state: str | None, base: str | None) -> dict[str, Any]:
    pairs = [f"{name}={value}" for name, value in (labels or {}).items()]
    return {"label": pairs, "state": state, "base": base}


def _force(force: bool) -> dict[str, str] | None:
    return {"force": "true"} if force else None
