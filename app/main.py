"""HTTP application factory: ``create_app(settings)``."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypedDict

from fastapi import Depends, FastAPI
from opentelemetry.trace import Tracer
from starlette.middleware.cors import CORSMiddleware

from app.api import (
    adapters,
    aliases,
    audit,
    batches,
    canaries,
    deletions,
    docs,
    engine,
    errors,
    events,
    file_uploads,
    files,
    health,
    imports,
    json_bodies,
    keys,
    limits,
    lorax,
    merges,
    messages,
    metrics,
    models,
    openai,
    openapi_document,
    pins,
    preflight,
    prices,
    refusals,
    request_log,
    responses,
    server,
    sessions,
    shares,
    tenants,
    tokenize,
    upload_sessions,
    uploads,
    usage,
    version_files,
)
from app.api.auth import tenant_in_path
from app.api.idempotency import Idempotency
from app.api.middleware import RequestMiddleware
from app.api.schemas import AnthropicErrorResponse, LoraxErrorResponse, answers
from app.console.router import router as console
from app.engine.port import Engine
from app.observability.tracing import open_tracing
from app.settings import Settings
from app.support.release import RELEASE
from app.wiring.gateway import Gateway
from app.wiring.lifecycle import running
from app.wiring.node import node_name

_CORS_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
#: Response headers that a page's script may read.
_CORS_EXPOSED = (
    *("etag", "location", "request-id", "retry-after", "server-timing", "x-request-id", "x-should-retry"),
    *("x-tenora-adapter", "x-tenora-ignored", "x-tenora-load-ms"),
    *(f"x-ratelimit-{value}-{unit}" for value in ("limit", "remaining", "reset") for unit in ("requests", "tokens")),
)

_DESCRIPTION = "Serves many tenants' LoRA adapters on one base Llama. Publish an adapter, then request it by name."


class State(TypedDict):
    """Content of ``request.state``."""

    gateway: Gateway
    tracer: Tracer | None


def create_app(settings: Settings, *, engine: Engine | None = None) -> FastAPI:
    """Build the application. Nothing is opened, started or connected before its lifespan begins.

    Args:
        engine: another implementation of the port; default: vLLM in this process.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[State]:
        async with AsyncExitStack() as stack:
            try:
                tracer = await stack.enter_async_context(_tracer())
                container = await stack.enter_async_context(running(settings, engine))
            except Exception as error:
                # `tenora server serve` prints this error: uvicorn only logs its traceback.
                app.state.start_error = error
                raise
            # `tenora server serve` needs the container to drain and stop the server.
            app.state.container = container
            yield {"gateway": container.gateway, "tracer": tracer}

    # FastAPI's documentation pages load scripts from other servers; the one in app.api.docs does not.
    app = FastAPI(
        title="Tenora",
        version=RELEASE,
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        generate_unique_id_function=openapi_document.operation_id,
        servers=openapi_document.SERVERS,
        openapi_tags=openapi_document.TAGS,
        license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
    )
    app.add_middleware(Idempotency, limits=settings.limits)
    app.add_middleware(RequestMiddleware, limits=settings.limits, batch=settings.batch)
    if settings.cors_origins:
        # Added last, so it is the outermost: browsers hide responses without CORS headers, errors included.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=_CORS_METHODS,
            allow_headers=("*",),
            expose_headers=_CORS_EXPOSED,
        )
    errors.install(app)
    _include_routers(app)
    json_bodies.install(app)
    openapi_document.install(app)
    return app


def _include_routers(app: FastAPI) -> None:
    # Routes are matched in this order: inference comes first.
    app.include_router(openai.router, responses=answers(400, 404, 409, 410, 429))
    app.include_router(lorax.router, responses=answers(400, 404, 409, 410, 429, model=LoraxErrorResponse))
    app.include_router(responses.router, responses=answers(400, 404, 409, 410, 429))
    app.include_router(messages.router, responses=answers(400, 404, 409, 410, 429, model=AnthropicErrorResponse))
    app.include_router(tokenize.router, responses=answers(400, 404, 409, 410, 429))
    app.include_router(files.router)
    app.include_router(file_uploads.router)
    app.include_router(responses.stored, responses=answers(404))
    app.include_router(models.router, responses=answers())
    app.include_router(tenants.router)
    app.include_router(tenants.own)
    in_tenant = [Depends(tenant_in_path)]
    app.include_router(keys.router, prefix="/admin/tenants/{tenant}/keys", dependencies=in_tenant)
    app.include_router(keys.router, prefix="/admin/keys")
    for router in (
        adapters.router,
        deletions.changes,
        aliases.router,
        shares.owned,
        pins.owned,
        merges.router,
        uploads.router,
        preflight.router,
    ):
        app.include_router(router, prefix="/admin/tenants/{tenant}/adapters", dependencies=in_tenant)
        app.include_router(router, prefix="/v1/adapters")
    app.include_router(upload_sessions.router, prefix="/admin/tenants/{tenant}/adapters", dependencies=in_tenant)
    app.include_router(upload_sessions.router, prefix="/v1/adapters")
    for router in (imports.router, version_files.router):
        app.include_router(router, prefix="/admin/tenants/{tenant}/adapters", dependencies=in_tenant)
        app.include_router(router, prefix="/v1/adapters")
    app.include_router(deletions.own, prefix="/admin/tenants/{tenant}/deletions", dependencies=in_tenant)
    app.include_router(deletions.own, prefix="/v1/deletions")
    app.include_router(deletions.everyones)
    app.include_router(refusals.router, prefix="/admin/tenants/{tenant}/refusals", dependencies=in_tenant)
    app.include_router(refusals.router, prefix="/v1/refusals")
    app.include_router(events.router)
    app.include_router(pins.router)
    app.include_router(engine.router)
    app.include_router(batches.router)
    app.include_router(batches.everyones)
    app.include_router(prices.router)
    app.include_router(usage.router)
    app.include_router(request_log.router)
    app.include_router(audit.router)
    app.include_router(canaries.router)
    app.include_router(limits.router)
    app.include_router(keys.own)
    app.include_router(sessions.router)
    app.include_router(server.router)
    app.include_router(shares.shared, prefix="/admin/tenants/{tenant}/shared", dependencies=in_tenant)
    app.include_router(shares.shared, prefix="/v1/shared")
    app.include_router(console)
    app.include_router(docs.router)
    app.include_router(health.router)
    app.include_router(metrics.router)


@asynccontextmanager
async def _tracer() -> AsyncGenerator[Tracer | None]:
    """Open tracing for the duration of the block, if it is configured.

    Raises:
        ValueError: OpenTelemetry's variables select an unsupported protocol.
    """
    if (provider := open_tracing(os.environ, node_name())) is None:
        yield None
        return
    try:
        yield provider.get_tracer("tenora")
    finally:
        await asyncio.to_thread(provider.shutdown)
