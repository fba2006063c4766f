"""Tables of what requests used. None of them refers to another: a record is kept whatever became of its tenant."""

from sqlalchemy import Column, Float, Index, Integer, String, Table
from sqlalchemy.types import BigInteger

from app.database.schema import UtcDateTime, metadata

usage = Table(
    "usage",
    metadata,
    Column("request_id", String(32), primary_key=True),
    Column("at", UtcDateTime, nullable=False, index=True),
    Column("tenant_id", Integer, nullable=False),
    Column("key_id", String(16), nullable=False),
    Column("version_id", Integer),
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("ttft_s", Float),
    Column("duration_s", Float, nullable=False),
    Column("load_s", Float),
    Column("finish_reason", String(32)),
    Column("status", Integer, nullable=False),
    Index("ix_usage_tenant_id_at", "tenant_id", "at"),
)

# Sums of the records, written in the transaction that writes these; they stay when records are dropped.
usage_hours = Table(
    "usage_hours",
    metadata,
    # Since 1970.
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", Integer, primary_key=True, autoincrement=False),
    Column("key_id", String(16), primary_key=True),
    # 0: the base model.
    Column("version_id", Integer, primary_key=True, autoincrement=False),
    Column("requests", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cold_loads", BigInteger, nullable=False),
    Column("load_s", Float, nullable=False),
    Index("ix_usage_hours_tenant_id_hour", "tenant_id", "hour"),
)
