"""Registry with many adapters, created once through the admin API. Each benchmarked server starts on a copy.

Publishing on a real engine spends most of its time in smoke checks. So a benchmark publishes once to a server without
an engine (:mod:`app.lab.bench.engineless`) and gives each fresh Tenora a copy of the resulting HOME.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from app.lab.bench.engineless import serving, set_up
from app.settings import Settings
from tenora_client.transport import Api, path_of

#: Default tenant of an adapter.
TENANT = "bench"

#: Concurrent uploads: the number that the server validates in parallel, and one in transfer.
_UPLOADS = 3
_KEYS = "keys.json"
#: Folders in HOME that the next server must create for itself.
_NOT_KEPT = ("cache", "spool")


def make_home(
    home: Path,
    settings: Mapping[str, str],
    adapters: Mapping[str, Path],
    tenants: Mapping[str, str],
    weights: Mapping[str, float],
    on_published: Callable[[], None],
) -> None:
    """Create HOME with tenants, keys and all adapters unless it exists.

    Args:
        settings: ``TENORA_*`` of the server that will run on it.
        adapters: folder by adapter name.
        tenants: tenant slug by adapter name. Adapters left out belong to TENANT.
        weights: share of the engine by tenant slug, 1 for those left out.
        on_published: callback after each adapter.

    Raises:
        tenora_client.transport.Refused: the server refused a tenant or an adapter.
    """
    if home.exists():
        return
    partial = home.with_name(f"{home.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    home_settings = settings_of({**settings, "TENORA_HOME": str(partial)})
    partial.mkdir(parents=True, mode=0o700)
    admin_key = asyncio.run(set_up(home_settings))
    slugs = sorted({TENANT, *tenants.values()})
    with serving(home_settings) as (url, _):
        with Api(url, admin_key) as api:
            keys = {slug: _make_tenant(api, slug, weights.get(slug)) for slug in slugs}
        # Publish in parallel to use both cores, with one connection per thread.
        with ThreadPoolExecutor(_UPLOADS) as threads:
            shares = [dict(list(adapters.items())[start::_UPLOADS]) for start in range(_UPLOADS)]
            jobs = [threads.submit(_publish, url, admin_key, share, tenants, on_published) for share in shares]
        for job in jobs:
            job.result()
    (partial / _KEYS).write_text(json.dumps({"admin": admin_key, "tenants": keys}), encoding="utf-8")
    partial.rename(home)


def copy_home(home: Path, copy: Path) -> tuple[str, dict[str, str]]:
    """Copy HOME for a server.

    Blobs are immutable, so they are hard-linked. The node's disk cache starts empty.

    Returns:
        The platform key, and the tenants' keys by slug.
    """
    kept = shutil.ignore_patterns(*_NOT_KEPT)
    shutil.copytree(home, copy, ignore=kept, copy_function=_link_blobs)
    keys = json.loads((copy / _KEYS).read_text(encoding="utf-8"))
    return keys["admin"], keys["tenants"]


def settings_of(environment: Mapping[str, str]) -> Settings:
    """Settings of a server with these environment variables. This process's environment adds to them."""
    values: dict[str, Any] = {}
    for name, value in environment.items():
        *groups, last = name.removeprefix("TENORA_").lower().split("__")
        inner = values
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = json.loads(value) if value.startswith(("{", "[")) else value
    return Settings(**values)


def _make_tenant(api: Api, slug: str, weight: float | None) -> str:
    api.call("POST", path_of("admin", "tenants"), {"slug": slug} | ({} if weight is None else {"weight": weight}))
    return str(api.call("POST", path_of("admin", "tenants", slug, "keys"), {"name": "benchmark"})["key"])


def _publish(
    url: str, key: str, adapters: Mapping[str, Path], tenants: Mapping[str, str], on_published: Callable[[], None]
) -> None:
    with Api(url, key) as api:
        for name, folder in adapters.items():
            path = path_of("admin", "tenants", tenants.get(name, TENANT), "adapters", name, "versions")
            with (folder / CONFIG_NAME).open("rb") as config, (folder / WEIGHTS_NAME).open("rb") as blob:
                api.upload(path, {CONFIG_NAME: config, WEIGHTS_NAME: blob})
            on_published()


def _link_blobs(source: str, target: str) -> None:
    if "blobs" in Path(source).parts:
        os.link(source, target)
    else:
        shutil.copy2(source, target)
