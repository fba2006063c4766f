"""Health probes for operators and load balancers: no key required, no secrets in the answer."""

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from app.api.auth import GatewayDep

router = APIRouter(prefix="/health", tags=["operations"])

_RETRY_AFTER_S = "5"


class Liveness(BaseModel):
    status: Literal["live"] = "live"


class Readiness(BaseModel):
    """Readiness. `degraded` means that inference works, and `checks` names the parts that are limited."""

    status: Literal["ready", "degraded", "not_ready"]
    checks: dict[str, str]


@router.get("", include_in_schema=False)
@router.get("/live", summary="Liveness: whether the process answers")
async def get_liveness() -> Liveness:
    """Restart a server whose process does not answer."""
    return Liveness()


@router.get(
    "/ready",
    summary="Readiness: whether engine, registry and store answer",
    responses={503: {"model": Readiness, "description": "Not ready; `checks` names what is missing"}},
)
async def get_readiness(gateway: GatewayDep, response: Response) -> Readiness:
    """Take a server that is not ready out of the load balancer. It needs no restart."""
    problems = await gateway.readiness.problems()
    limitations = gateway.readiness.limitations
    checks = {name: problem or limitations.get(name, "ok") for name, problem in problems.items()}
    if not any(problems.values()):
        return Readiness(status="degraded" if limitations else "ready", checks=checks)
    response.status_code = 503
    response.headers["retry-after"] = _RETRY_AFTER_S
    return Readiness(status="not_ready", checks=checks)
