"""Publish a version over HTTP with options, and read it."""

import json

import httpx

from tests.support.serving import PeftFiles
from tests.support.site import parts


def publish(client: httpx.Client, files: PeftFiles, **options: object) -> httpx.Response:
    form = parts(files) | {"options": ("options", json.dumps(options).encode())}
    return client.post("/v1/adapters/quotes/versions", files=form)


def version(client: httpx.Client, number: int) -> dict[str, object]:
    return client.get(f"/v1/adapters/quotes/versions/{number}").json()
