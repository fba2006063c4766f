"""Tables of usage, prices and limits, without foreign keys: a record outlives its tenant, key and adapter."""

from sqlalchemy import JSON, Column, Float, Index, Integer, String, Table, text
from sqlalchemy.types import BigInteger

from app.database.schema import Amount, UtcDateTime, metadata
from app.domain.usage import MAX_REASON

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
    Column("finish_reason", String(MAX_REASON)),
    Column("status", Integer, nullable=False),
    Column("cost", Amount, nullable=False, server_default=text("'0'")),
    Column("slot_s", Float, nullable=False, server_default=text("0")),
    Index("ix_usage_tenant_id_at", "tenant_id", "at"),
)

# Hourly totals of the records, written in the same transaction; they stay when records are deleted.
usage_hours = Table(
    "usage_hours",
    metadata,
    # Hours since 1970.
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
    # Units of the currency, and the rest in picos: 64 bits of picos would overflow at nine million units.
    Column("cost_units", BigInteger, nullable=False, server_default=text("0")),
    Column("cost_picos", BigInteger, nullable=False, server_default=text("0")),
    Column("slot_s", Float, nullable=False, server_default=text("0")),
    Index("ix_usage_hours_tenant_id_hour", "tenant_id", "hour"),
)

# Hourly latencies of the records: how many fell in each bucket of app/domain/histogram.py. They go with the records.
usage_latencies = Table(
    "usage_latencies",
    metadata,
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", Integer, primary_key=True, autoincrement=False),
    Column("key_id", String(16), primary_key=True),
    Column("version_id", Integer, primary_key=True, autoincrement=False),
    Column("bucket", Integer, primary_key=True, autoincrement=False),
    # Times to the first token, and durations of whole answers.
    Column("ttft", BigInteger, nullable=False),
    Column("duration", BigInteger, nullable=False),
    # A series reads only these: of all tenants, or of one.
    Index("ix_usage_latencies_hour_bucket", "hour", "bucket", "ttft", "duration"),
    Index("ix_usage_latencies_tenant_id_hour", "tenant_id", "hour", "bucket", "ttft", "duration"),
)

# Price per million tokens.
prices = Table(
    "prices",
    metadata,
    # default, base, adapter:7.
    Column("subject", String(80), primary_key=True),
    Column("prompt", Amount, nullable=False),
    Column("cached", Amount, nullable=False),
    Column("output", Amount, nullable=False),
    # Factor of the prices for lines of batches.
    Column("batch", Amount, nullable=False, server_default=text("'1'")),
)

# Limit accounts of tenants, keys and adapters, shared by several servers; see app/domain/limits/limiter.py.
limit_accounts = Table(
    "limit_accounts",
    metadata,
    # tenant:7, key:8f3a...
    Column("subject", String(80), primary_key=True),
    Column("account", JSON, nullable=False),
)

# Reservations of requests in flight: a lease that the server renews.
limit_grants = Table(
    "limit_grants",
    metadata,
    Column("request_id", String(32), primary_key=True),
    Column("node_id", String(32), nullable=False, index=True),
    Column("taken", JSON, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False, index=True),
)

# Reservations reclaimed from requests of dead or disconnected servers, whose records may still arrive.
limit_reclaimed = Table(
    "limit_reclaimed",
    metadata,
    Column("request_id", String(32), primary_key=True),
    Column("taken", JSON, nullable=False),
    Column("at", UtcDateTime, nullable=False, index=True),
)
