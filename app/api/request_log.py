"""Single requests and series of them: ``/v1/requests``, ``/v1/usage/series``, and the same under ``/admin``."""

from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.api.auth import Admin, GatewayDep
from app.api.request_log_schemas import RequestOut, UsageSeriesOut
from app.api.schemas import Cursor, Limit, ListOut, answers
from app.api.usage import Reader
from app.domain.request_log import SeriesStep
from app.services.common.validation import DEFAULT_LIMIT
from app.services.usage.request_log import Selection
from app.wiring.gateway import Gateway

router = APIRouter(tags=["usage"])

Tenant = Annotated[str | None, Query(description="Slug of the tenant that is charged; default: all")]
Step = Annotated[SeriesStep, Query(description="Width of the points: `1m`, `5m`, `1h` or `1d` (days in UTC)")]


async def _selection(
    start: Annotated[datetime | None, Query(alias="from", description="Earliest arrival")] = None,
    end: Annotated[
        datetime | None, Query(alias="to", description="Time before which the requests arrived; default: now")
    ] = None,
    key: Annotated[str | None, Query(pattern="^[0-9A-Za-z]{1,16}$", description="Id of the key")] = None,
    adapter: Annotated[
        str | None,
        Query(max_length=200, description="`pricing`, `retail/pricing` or `pricing@3`, or the base model's name"),
    ] = None,
) -> Selection:
    return Selection(None, start, end, key, adapter)


#: Selection of a series.
Chosen = Annotated[Selection, Depends(_selection)]


async def _ending(
    chosen: Chosen,
    status: Annotated[int | None, Query(ge=100, le=599, description="Status of the answer")] = None,
    failed: Annotated[bool | None, Query(description="Only requests without a whole answer, or only others")] = None,
    cold: Annotated[
        bool | None, Query(description="Only requests that waited for their adapter to load, or only others")
    ] = None,
) -> Selection:
    return replace(chosen, status=status, failed=failed, cold=cold)


#: Selection of a list.
ChosenRequests = Annotated[Selection, Depends(_ending)]


@router.get("/v1/requests", summary="List the tenant's requests, newest first", responses=answers(400))
async def list_requests(
    owner: Reader, gateway: GatewayDep, chosen: ChosenRequests, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = None
) -> ListOut[RequestOut]:
    """Requests of the last 30 days by default, with all the given properties. Prompts and answers are not stored.

    A request appears about a second after its end, and for the days that the server keeps records.
    """
    return await _listed(gateway, replace(chosen, tenant=owner.tenant), limit, cursor)


@router.get("/admin/requests", summary="List the requests of tenants, newest first", responses=answers(400, 404))
async def list_all_requests(
    _: Admin,
    gateway: GatewayDep,
    chosen: ChosenRequests,
    tenant: Tenant = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ListOut[RequestOut]:
    """Requests of the last 30 days by default, with all the given properties. Prompts and answers are not stored."""
    return await _listed(gateway, replace(chosen, tenant=tenant), limit, cursor)


@router.get("/v1/usage/series", summary="Show the tenant's usage and latencies by time", responses=answers(400))
async def get_usage_series(
    owner: Reader, gateway: GatewayDep, chosen: Chosen, step: Step = SeriesStep.HOUR
) -> UsageSeriesOut:
    """A series has at most 1,500 steps. By default it covers the last hour, day, week or 30 days, by its step.

    Latencies cover the days for which the server keeps records of single requests.
    """
    return await _series(gateway, replace(chosen, tenant=owner.tenant), step)


@router.get("/admin/usage/series", summary="Show usage and latencies of tenants by time", responses=answers(400, 404))
async def get_all_usage_series(
    _: Admin, gateway: GatewayDep, chosen: Chosen, tenant: Tenant = None, step: Step = SeriesStep.HOUR
) -> UsageSeriesOut:
    """A series has at most 1,500 steps. By default it covers the last hour, day, week or 30 days, by its step."""
    return await _series(gateway, replace(chosen, tenant=tenant), step)


async def _listed(gateway: Gateway, chosen: Selection, limit: int, cursor: str | None) -> ListOut[RequestOut]:
    page = await gateway.request_log.list(chosen, limit=limit, cursor=cursor)
    return ListOut(data=[RequestOut.of(request) for request in page.data], next_cursor=page.next_cursor)


async def _series(gateway: Gateway, chosen: Selection, step: SeriesStep) -> UsageSeriesOut:
    return UsageSeriesOut.of(await gateway.request_log.series(chosen, step), gateway.settings.currency)
