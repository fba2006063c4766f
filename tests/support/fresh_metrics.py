"""Current ``/metrics``: the server renders its text at most once a second."""

import time

import httpx

from app.wiring.engine_metrics import RENDERED_EVERY_S


def fresh_metrics(client: httpx.Client) -> str:
    """Return a text that was rendered after this call began.

    It counts the request before it, so it differs from that request's text.
    """
    answer = client.get("/metrics")
    assert answer.status_code == 200, answer.text
    before, deadline = answer.text, time.monotonic() + 60
    while (text := client.get("/metrics").text) == before:
        assert time.monotonic() < deadline
        time.sleep(RENDERED_EVERY_S / 20)
    return text
