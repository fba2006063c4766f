"""Suggestions for an unknown adapter or version: the nearest name, or the command that lists the names."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Optional

from tenora_client.cli.output import FAILED, fail
from tenora_client.transport import Api, Refused, adapters_path


@contextmanager
def suggest_nearest(api: Api, tenant: Optional[str], version: str, *, as_json: bool) -> Iterator[None]:
    """End the command with a next step if the server does not know ``ADAPTER[@N]``."""
    try:
        yield
    except Refused as refused:
        if refused.status != HTTPStatus.NOT_FOUND or as_json or not (advice := _advice(api, tenant, version)):
            raise
        fail(advice, FAILED)


def _advice(api: Api, tenant: Optional[str], version: str) -> str:
    adapter, at, number = version.partition("@")
    of_tenant = f" --tenant {tenant}" if tenant else ""
    try:
        versions = {row["name"]: row["versions"] for row in api.list(adapters_path(tenant))}
    except Refused:
        # The key may not list this tenant's adapters, or the tenant is unknown: keep the server's message.
        return ""
    if adapter in versions:
        newest = next(iter(versions[adapter]), None)
        if not at or newest is None:
            return ""
        return f"The adapter {adapter!r} has no version {number} (404). The newest is {adapter}@{newest}."
    near = difflib.get_close_matches(adapter, versions, n=1)
    question = f" Did you mean {near[0]!r}?" if near else ""
    return f"There is no adapter {adapter!r} (404).{question} `tenora adapters list{of_tenant}` shows the names."
