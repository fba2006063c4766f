"""Routes that every inference request takes."""

from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import request_response


class PlainRoute(APIRoute):
    """FastAPI describes it, and Starlette runs it: the endpoint takes the request and returns the response.

    To solve dependencies costs FastAPI more than all of its routing.
    """

    def __init__(self, path: str, endpoint: Any, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = request_response(endpoint)
