"""``GET /admin/audit``: the audit trail, and the verification of its seals."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from app.api.auth import Admin, GatewayDep
from app.api.schemas import Cursor, Limit, ListOut, answers
from app.domain.audit import AuditFilter, NamedRow
from app.services.access.audit import Verdict
from app.services.common.validation import DEFAULT_LIMIT

router = APIRouter(tags=["operations"])


class AuditRowOut(BaseModel):
    id: int
    at: datetime
    actor: str = Field(description="Id of a key, `cli`, `engine` or `canary`")
    actor_name: str | None = Field(description="Owner of that key, or else its name")
    action: str = Field(description="Action, such as `alias.move`")
    tenant: str | None = Field(description="Slug of the owner; null: the platform")
    subject: str = Field(description="Name of the changed object, or the id of a key")
    before: Any = Field(description="State before the change")
    after: Any = Field(description="State after the change")
    sealed: bool = Field(description="Whether the row has its seal; a row gets it within seconds")

    @classmethod
    def of(cls, named: NamedRow) -> "AuditRowOut":
        row = named.row
        return cls(
            id=row.id,
            at=row.at,
            actor=row.actor,
            actor_name=named.actor_name,
            action=row.action,
            tenant=row.tenant,
            subject=row.subject,
            before=row.before,
            after=row.after,
            sealed=named.sealed,
        )


class AuditVerificationOut(BaseModel):
    """Result of a verification of the whole trail."""

    intact: bool = Field(description="Whether no row and no seal was changed, removed or inserted")
    sealed: int = Field(description="Number of sealed rows")
    fresh: int = Field(description="Number of rows without a seal yet")
    trimmed: int = Field(description="Highest id of the rows that retention removed; 0: none")
    problems: list[str] = Field(description="The first 100 problems, the oldest first")
    problem_count: int

    @classmethod
    def of(cls, verdict: Verdict) -> "AuditVerificationOut":
        return cls(
            intact=not verdict.problem_count,
            sealed=verdict.sealed,
            fresh=verdict.fresh,
            trimmed=verdict.trimmed,
            problems=list(verdict.problems),
            problem_count=verdict.problem_count,
        )


async def _filter(
    tenant: Annotated[str | None, Query(description="Slug of the owner of the changed objects")] = None,
    actor: Annotated[str | None, Query(description="Id of a key, `cli`, `engine` or `canary`")] = None,
    action: Annotated[
        str | None, Query(description="An action, or with a dot at its end all that begin so: `alias.`")
    ] = None,
    subject: Annotated[str | None, Query(description="Name of the changed object, such as `pricing@3`")] = None,
    start: Annotated[datetime | None, Query(alias="from", description="Earliest time")] = None,
    end: Annotated[datetime | None, Query(alias="to", description="Time before which the rows were written")] = None,
) -> AuditFilter:
    return AuditFilter(tenant, actor, action, subject, start, end)


@router.get("/admin/audit", summary="List the audit trail, newest first", responses=answers(400))
async def list_audit(
    _: Admin,
    gateway: GatewayDep,
    only: Annotated[AuditFilter, Depends(_filter)],
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> ListOut[AuditRowOut]:
    """Rows have all the given properties. The trail has every change, and uses of platform keys once a minute."""
    page = await gateway.audit_log.list(only, limit=limit, cursor=cursor)
    return ListOut(data=[AuditRowOut.of(named) for named in page.data], next_cursor=page.next_cursor)


@router.get("/admin/audit/verification", summary="Verify the whole audit trail", responses=answers())
async def get_audit_verification(_: Admin, gateway: GatewayDep) -> AuditVerificationOut:
    """The server computes the seal of every row again, which takes seconds for a long trail.

    Requests at the same time share one verification.
    """
    return AuditVerificationOut.of(await gateway.audit.verify_once())
