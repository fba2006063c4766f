"""The HTTP application: ``create_app(settings)``."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypedDict

from fastapi import Depends, FastAPI

from app.api import adapters, errors, health, keys, lorax, metrics, models, openai, tenants, uploads
from app.api.auth import tenant_in_path
from app.api.middleware import RequestFrame
from app.api.schemas import LoraxErrorOut, answers
from app.engine.base import Engine
from app.process import Process, build_process
from app.settings import Settings

#: Files, stores and validators block in threads. Python's default, cores + 4, would let a few slow uploads
#: keep everyone's adapters from being fetched.
_THREADS = 32

_DESCRIPTION = "Many tenants' LoRA adapters on one base Llama: publish them, and name them in requests."


class State(TypedDict):
    """What every request finds in ``request.state``."""

    process: Process


def create_app(settings: Settings, *, engine: Engine | None = None) -> FastAPI:
    """The application; nothing is opened, started or connected to before its lifespan begins.

    Args:
        engine: another implementation of the port; default: vLLM in this process.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[State]:
        async with _running(settings, engine) as process:
            yield {"process": process}

    app = FastAPI(title="Tenora", description=_DESCRIPTION, lifespan=lifespan, redirect_slashes=False)
    app.add_middleware(RequestFrame, limits=settings.limits)
    errors.install(app)
    _include_routers(app)
    return app


def _include_routers(app: FastAPI) -> None:
    # Routes are tried in this order: inference comes first.
    app.include_router(openai.router, responses=answers(400, 404, 409, 413))
    app.include_router(lorax.router, responses=answers(400, 404, 409, 413, model=LoraxErrorOut))
    app.include_router(models.router, responses=answers(404, 409))
    app.include_router(tenants.router)
    in_tenant = [Depends(tenant_in_path)]
    app.include_router(keys.router, prefix="/admin/tenants/{tenant}/keys", dependencies=in_tenant)
    app.include_router(keys.router, prefix="/admin/keys")
    for router in (adapters.router, uploads.router):
        app.include_router(router, prefix="/admin/tenants/{tenant}/adapters", dependencies=in_tenant)
        app.include_router(router, prefix="/v1/adapters")
    app.include_router(health.router)
    app.include_router(metrics.router)


@asynccontextmanager
async def _running(settings: Settings, engine: Engine | None) -> AsyncGenerator[Process]:
    """Start a server's parts and end them in the opposite order.

    Raises:
        RegistryUnavailable: the database does not answer, or needs ``tenora migrate``.
        EngineUnavailable, or whatever the engine raises when it cannot start
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="tenora"))
    process = build_process(settings, engine=engine)
    async with AsyncExitStack() as started:
        started.push_async_callback(process.database.close)
        await process.database.check()
        started.callback(process.spool.close)
        await asyncio.to_thread(process.spool.open)
        started.push_async_callback(process.engine.stop)
        await process.engine.start()
        started.push_async_callback(process.removal.close)
        yield process
