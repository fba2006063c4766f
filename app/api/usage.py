"""``GET /v1/usage`` and ``GET /admin/usage``: usage reports as JSON or CSV."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response

from app.api.auth import Admin, GatewayDep, Owner, require_owner
from app.api.schemas import answers
from app.api.usage_schemas import UsageReportOut, csv_of
from app.domain.access import Scope
from app.domain.errors import InvalidRequest
from app.domain.usage import Grouping
from app.services.usage.usage import Report

router = APIRouter(tags=["usage"])

Reader = Annotated[Owner, Depends(require_owner(Scope.USAGE_READ))]
Start = Annotated[
    datetime | None,
    Query(alias="from", description="Time in the first hour of the report; default: 30 days before `to`"),
]
End = Annotated[
    datetime | None, Query(alias="to", description="Time at which the last hour of the report ends; default: now")
]
By = Annotated[
    str,
    Query(
        max_length=100,
        description="Comma-separated groupings: key, adapter or version, hour or day. Platform keys can add tenant.",
    ),
]
Format = Annotated[Literal["json", "csv"], Query(description="Form of the answer")]
_CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}


@router.get(
    "/v1/usage", summary="Report the tenant's usage", response_model=UsageReportOut, responses=answers(400) | _CSV
)
async def get_usage(
    owner: Reader,
    gateway: GatewayDep,
    start: Start = None,
    end: End = None,
    by: By = "adapter",
    format: Format = "json",  # noqa: A002 - the name of the query parameter
) -> Any:
    """The report covers whole hours, 30 days by default. `format=csv` gives a table with a header row."""
    groupings = _groupings(by, allowed=[grouping for grouping in Grouping if grouping is not Grouping.TENANT])
    return _shown(await gateway.usage.report(owner.tenant, start=start, end=end, by=groupings), groupings, format)


@router.get(
    "/admin/usage",
    summary="Report the usage of tenants",
    response_model=UsageReportOut,
    responses=answers(400, 404) | _CSV,
)
async def get_all_usage(
    _: Admin,
    gateway: GatewayDep,
    tenant: Annotated[str | None, Query(description="Report only this tenant")] = None,
    start: Start = None,
    end: End = None,
    by: By = "tenant",
    format: Format = "json",  # noqa: A002
) -> Any:
    """The report covers whole hours, 30 days by default, and all tenants unless `tenant` names one.

    `format=csv` gives a table.
    """
    groupings = _groupings(by, allowed=list(Grouping))
    return _shown(await gateway.usage.report(tenant, start=start, end=end, by=groupings), groupings, format)


def _groupings(by: str, *, allowed: list[Grouping]) -> list[Grouping]:
    names = [name for name in by.split(",") if name]
    for name in names:
        if name not in allowed:
            raise InvalidRequest(f"by contains {name[:80]!r}. Use one or more of {', '.join(allowed)}.", param="by")
    return [Grouping(name) for name in names]


def _shown(report: Report, by: list[Grouping], kind: str) -> UsageReportOut | Response:
    if kind == "csv":
        return Response(csv_of(report, by), media_type="text/csv")
    return UsageReportOut.of(report)
