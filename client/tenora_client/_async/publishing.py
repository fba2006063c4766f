"""Publish versions: from this machine, from the Hub or S3, or as a merge of other versions."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tenora_client._async.resource import AsyncResource
from tenora_client.errors import TenoraError
from tenora_client.paths import adapters_path
from tenora_client.progress import OnProgress
from tenora_client.publishing import Publication, publish, publish_options
from tenora_client.types import Version
from tenora_client.waiting import POLL_S, has_settled, not_settled


class AsyncPublishing(AsyncResource):
    """Publish versions."""

    async def publish(
        self,
        adapter: str,
        path: str | os.PathLike[str],
        *,
        alias: str | None = "default",
        labels: Mapping[str, str] | None = None,
        card: str | None = None,
        training_run: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        allow_no_effect: bool = False,
        wait: bool = True,
        on_progress: OnProgress | None = None,
        part_bytes: int | None = None,
        through_server: bool = False,
        tenant: str | None = None,
    ) -> Version:
        """Upload a folder or an archive as the adapter's next version.

        An interrupted upload resumes when the same files are published again, also from another process. Files that
        are a version already give that version.

        Args:
            path: folder that PEFT wrote, a folder with one below it, or a .tar.gz or .zip of it.
            alias: the alias that moves to the new version; None moves none.
            labels: names and values that describe the version.
            card: free text.
            training_run: link to the training run.
            defaults: values for fields that requests omit.
            allow_no_effect: accept a version that answers exactly as the base does.
            wait: return after the smoke check; else the state may still be ``validating``.
            on_progress: callback for progress.
            part_bytes: size of a part in bytes; None: the server's choice.
            through_server: send all bytes through the server, none straight to its store.
            tenant: owner of the adapter; needed with a platform key.

        Raises:
            NoAdapter: there is no adapter at the path.
            UploadRejected: the adapter cannot be served; ``reasons`` has every reason.
            OSError: a file cannot be read.
        """
        options = publish_options(
            alias, labels, card, training_run, defaults, allow_no_effect=allow_no_effect, wait=wait
        )
        job = Publication(tenant, adapter, Path(path), options, part_bytes, through_server)
        version = await self._session.run(partial(publish, self._session.access, job), on_progress)
        return await self._session.typed(Version, version)

    async def import_version(
        self,
        adapter: str,
        source: str,
        *,
        alias: str | None = "default",
        labels: Mapping[str, str] | None = None,
        card: str | None = None,
        tenant: str | None = None,
    ) -> Version:
        """Let the server fetch a version from the Hugging Face Hub or from S3.

        Args:
            source: ``hf://org/repository@COMMIT`` or ``s3://bucket/prefix/``.
        """
        options = publish_options(alias, labels, card, None, None, allow_no_effect=False, wait=True)
        body = {"source": source, "options": options}
        return await self._session.change(Version, "POST", adapters_path(tenant, adapter, "imports"), body)

    async def merge(
        self,
        adapter: str,
        sources: Mapping[str, float],
        method: str = "linear",
        *,
        alias: str | None = None,
        labels: Mapping[str, str] | None = None,
        card: str | None = None,
        tenant: str | None = None,
        **arguments: Any,
    ) -> Version:
        """Merge 2 to 8 versions of the tenant into a new one, with PEFT.

        Args:
            sources: weights by version, such as ``{"quotes@1": 0.7, "quotes@2": 0.3}``.
            method: method of PEFT's ``add_weighted_adapter``.
            arguments: its arguments, such as ``density`` or ``svd_rank``.
        """
        options = publish_options(alias, labels, card, None, None, allow_no_effect=False, wait=True)
        body = {
            "sources": [{"version": name, "weight": weight} for name, weight in sources.items()],
            "method": method,
            "options": options,
            **arguments,
        }
        return await self._session.change(Version, "POST", adapters_path(tenant, adapter, "merges"), body)

    async def wait(self, adapter: str, number: int, *, timeout_s: float = 600.0, tenant: str | None = None) -> Version:
        """Wait until the smoke check of a version has ended.

        Returns:
            The version: ready, or rejected with its reason in ``state_reason``.

        Raises:
            TenoraError: the smoke check takes longer than ``timeout_s`` seconds.
        """
        path = adapters_path(tenant, adapter, "versions", str(number))
        deadline = time.monotonic() + timeout_s
        while True:
            version = await self._session.get(Version, path)
            if has_settled(version):
                return version
            if time.monotonic() >= deadline:
                raise TenoraError(not_settled(version, timeout_s))
            await asyncio.sleep(POLL_S)
