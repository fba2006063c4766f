"""The console's session as a browser uses it."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.support.site import Site

#: Headers of a request by the console's script.
FROM_CONSOLE = {"x-tenora-console": "1", "sec-fetch-site": "same-origin"}
COOKIE = "tenora"


@contextmanager
def browser(site: Site) -> Iterator[httpx.Client]:
    """Open a client with cookies that sends the console's headers."""
    with site.client(None) as client:
        client.headers.update(FROM_CONSOLE)
        yield client


@contextmanager
def signed_in(site: Site, key: str) -> Iterator[httpx.Client]:
    """Open a client that has signed in."""
    with browser(site) as client:
        sign_in(client, key)
        yield client


def sign_in(client: httpx.Client, key: str) -> httpx.Response:
    answer = client.post("/v1/session", headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 201, answer.text
    return answer
