"""Publish a folder or an archive as the next version of an adapter, resuming an interrupted upload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenora_client.configuration import Access
from tenora_client.folders import CONFIG_FILE, WEIGHTS_FILE, find_adapter
from tenora_client.paths import adapters_path
from tenora_client.progress import OnProgress, Progress
from tenora_client.transport import Api
from tenora_client.upload import Sender, Source

ARCHIVE = "archive"


@dataclass(frozen=True)
class Publication:
    """Files to publish, and their target.

    Attributes:
        tenant: owner of the adapter, None for the tenant of the key.
        path: folder or archive, or a folder that has the adapter below it.
        options: options of the version, as the server's routes take them.
        part_bytes: size of a part, None for the server's choice.
        through_server: send no part straight to the server's store.
    """

    tenant: str | None
    adapter: str
    path: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    part_bytes: int | None = None
    through_server: bool = False


def publish(access: Access, job: Publication, report: OnProgress) -> Any:
    """Publish, and return the JSON of the version.

    Raises:
        NoAdapter: there is no adapter at the path.
        Refused: the server refused the upload.
        httpx.TransportError: the server did not answer.
        OSError: a file cannot be read.
    """
    sources = _sources(find_adapter(job.path), report)
    total, sent = sum(source.size for source in sources.values()), 0

    def count(size: int) -> None:
        nonlocal sent
        sent += size
        report(Progress("checking" if sent >= total else "sending", sent, total))

    report(Progress("sending", 0, total))
    uploads = adapters_path(job.tenant, job.adapter, "uploads")
    with Api(access.url, access.key) as api:
        sender = Sender(api, uploads, sources, through_server=job.through_server, sent=count)
        version, _ = sender.publish(dict(job.options), job.part_bytes)
    return version


def publish_options(
    alias: str | None,
    labels: Mapping[str, str] | None,
    card: str | None,
    training_run: str | None,
    defaults: Mapping[str, Any] | None,
    *,
    allow_no_effect: bool,
    wait: bool,
) -> dict[str, Any]:
    """Build the options of a version. Omitted ones are left to the server."""
    options: dict[str, Any] = {} if alias == "default" else {"alias": alias or None}
    given = {"labels": labels, "card": card, "training_run": training_run, "defaults": defaults}
    options.update({name: value for name, value in given.items() if value is not None})
    if allow_no_effect:
        options["allow_no_effect"] = True
    if not wait:
        options["wait"] = False
    return options


def _sources(found: Path, report: OnProgress) -> dict[str, Source]:
    """Hash the files to send, by the names that the server uses."""
    paths = {name: found / name for name in (CONFIG_FILE, WEIGHTS_FILE)} if found.is_dir() else {ARCHIVE: found}
    total, done = sum(path.stat().st_size for path in paths.values()), 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        report(Progress("reading", done, total))

    return {name: Source.read(path, count) for name, path in paths.items()}
