"""``GET /metrics``: for platform keys and keys with the scope ``metrics``; without a key if so configured."""

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from app.api.auth import gateway_of, require
from app.api.schemas import answers
from app.domain.access import Scope

router = APIRouter(tags=["operations"])

_require_metrics = require(Scope.METRICS)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        **answers(),
        200: {
            "description": "Metrics in Prometheus's text format",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
    },
)
async def get_metrics(request: Request) -> Response:
    """A setting opens this route to callers without a key. Then metrics do not name adapters."""
    gateway = await gateway_of(request)
    if gateway.settings.metrics_key_required:
        await _require_metrics(request)
    return Response(await gateway.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
