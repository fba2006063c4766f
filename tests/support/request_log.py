"""Records of single requests, as ``GET /v1/requests`` lists them."""

from collections.abc import Sequence
from typing import Any

import httpx

from tests.support.server import until

_RECORDED_S = 60


def logged(client: httpx.Client, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Wait until requests are recorded, and return their records in the order of the ids."""
    found: dict[str, dict[str, Any]] = {}

    def recorded() -> bool:
        answer = client.get("/v1/requests", params={"limit": 200})
        assert answer.status_code == 200, answer.text
        found.update({row["id"]: row for row in answer.json()["data"]})
        return found.keys() >= set(ids)

    until(recorded, _RECORDED_S)
    return [found[each] for each in ids]
