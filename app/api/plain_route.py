"""Route class of the inference routes."""

from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import request_response


class PlainRoute(APIRoute):
    """Route that FastAPI documents and Starlette runs: the endpoint takes the request and returns the response.

    It skips FastAPI's dependency resolution. See docs/decisions/0029-request-path-overhead.md.
    """

    def __init__(self, path: str, endpoint: Any, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = request_response(endpoint)
