"""Usage records that differ by their number."""

from dataclasses import replace
from datetime import UTC, datetime

from app.domain.usage import UsageRecord

RECORD = UsageRecord(
    request_id="a" * 32,
    at=datetime(2026, 11, 21, 12, 30, 15, 123456, tzinfo=UTC),
    tenant_id=7,
    key_id="k" * 16,
    version_id=3,
    prompt_tokens=5,
    cached_tokens=4,
    output_tokens=2,
    ttft_s=0.1,
    duration_s=0.25,
    load_s=None,
    finish_reason="stop",
    status=200,
)


def numbered(number: int) -> UsageRecord:
    return replace(RECORD, request_id=f"{number:032x}")
