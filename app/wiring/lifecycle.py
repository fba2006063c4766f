"""Start and stop of a server's parts."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager

from adapters.errors import BlobNotFound, DiskFull, StoreUnavailable
from app.domain.errors import RegistryUnavailable
from app.engine.port import Engine
from app.settings import Settings
from app.wiring.container import Container
from app.wiring.engine_node import EngineNode
from app.wiring.gateway import Gateway
from app.wiring.jobs import gateway_jobs, node_jobs
from app.wiring.service_metrics import ServiceMetrics

logger = logging.getLogger(__name__)

#: Threads for blocking calls of files, stores and validators. With Python's default (cores + 4), a few slow uploads
#: could block the fetching of adapters.
_THREADS = 32


@asynccontextmanager
async def running(settings: Settings, engine: Engine | None) -> AsyncGenerator[Container]:
    """Start a server's parts, and stop them in reverse order.

    Raises:
        RegistryUnavailable: the database does not answer, or needs ``tenora server migrate``.
        app.services.access.peppers.MissingPepper: no pepper was found for an existing registry.
        app.services.access.peppers.WrongPepper: the registry was created with another pepper.
        app.services.access.peppers.InvalidPepper: a pepper is too short.
        ForeignStore: the store belongs to another registry.
        EngineUnavailable: the engine cannot start; other errors of the engine pass unchanged.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="tenora"))
    container = Container(settings, engine=engine)
    resources, gateway, node = container.resources, container.gateway, container.node
    async with AsyncExitStack() as started:
        started.push_async_callback(resources.database.close)
        await resources.database.check()
        await gateway.open_peppers()
        await _check_store(resources.store_owner.ensure)
        await _open_folders(gateway, started)
        await _join(node, started)
        await _open_accounts(gateway, started)
        await _start_engine(node, started)
        started.push_async_callback(gateway.smoke_tests.close)
        started.push_async_callback(gateway.batch_admission.close)
        # The earlier process's journal has been shipped, so what it held can be given back.
        await gateway.batch_runner.open()
        await _start_jobs(gateway, node, started)
        # Stopped first: its lines are given back while engine and journal work.
        started.push_async_callback(gateway.batch_runner.stop, gateway.settings.grace_seconds)
        gateway.batch_runner.start()
        yield container


@asynccontextmanager
async def running_node(node: EngineNode) -> AsyncGenerator[None]:
    """Start an engine node without a gateway, and stop it in reverse order.

    Raises: as :func:`running`, except the errors of peppers.
    """
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="tenora"))
    resources = node.resources
    async with AsyncExitStack() as started:
        started.push_async_callback(resources.database.close)
        await resources.database.check()
        # A gateway claims a new store, so that a replica's database role needs fewer rights.
        await _check_store(resources.store_owner.verify)
        await _join(node, started)
        await _start_engine(node, started)
        for job in node_jobs(node):
            started.push_async_callback(job.stop)
            job.start()
        yield


async def _check_store(check: Callable[[], Awaitable[None]]) -> None:
    """Check that the store belongs to this registry.

    If the store does not answer, only a warning is logged. The check is repeated for readiness, and before anything is
    removed from the store.

    Raises:
        ForeignStore: the store belongs to another registry.
    """
    try:
        await check()
    except (StoreUnavailable, DiskFull, BlobNotFound) as error:
        logger.warning("The owner of the store could not be checked: %s", error)


async def _open_folders(gateway: Gateway, started: AsyncExitStack) -> None:
    started.callback(gateway.spool.close)
    await asyncio.to_thread(gateway.spool.open)
    started.callback(gateway.file_spool.close)
    await asyncio.to_thread(gateway.file_spool.open)
    started.callback(gateway.parts.close)
    await asyncio.to_thread(gateway.parts.open)
    await asyncio.to_thread(gateway.contents.start)
    started.push_async_callback(gateway.prompts.close)


async def _join(node: EngineNode, started: AsyncExitStack) -> None:
    """Register the node, and remove what was deleted while it was down."""
    await node.nodes.register()
    await node.deleting.catch_up()
    started.push_async_callback(node.deleting.close)


async def _open_accounts(gateway: Gateway, started: AsyncExitStack) -> None:
    """Open usage records, limit accounts and prices."""
    started.push_async_callback(gateway.ledger.close)
    await gateway.ledger.open()
    # Ship records that a crashed server left in its journal before limits are restored from the database.
    await gateway.ledger.ship()
    started.push_async_callback(gateway.limits.accounts.close)
    await gateway.limits.accounts.restore()
    await gateway.limits.prices.refresh()
    # Requests that end with the engine still get their records: the engine stops first.
    started.push_async_callback(gateway.meter.close)


async def _start_engine(node: EngineNode, started: AsyncExitStack) -> None:
    """Start the engine, and load pins, preloads and the working set."""
    started.push_async_callback(node.engine.stop)
    await node.engine.start()
    await node.placement.prepare()
    started.push_async_callback(node.prefetching.close)
    await node.prefetching.prepare()


async def _start_jobs(gateway: Gateway, node: EngineNode, started: AsyncExitStack) -> None:
    """Start the periodic jobs and their metrics."""
    jobs = (*gateway_jobs(gateway), *node_jobs(node))
    gateway.meter.watch(gateway.metrics.used)
    gateway.metrics.add(ServiceMetrics(gateway, node, jobs).now)
    started.push_async_callback(gateway.audit.access_log.write)
    started.push_async_callback(_write_key_uses, gateway)
    for job in jobs:
        started.push_async_callback(job.stop)
        job.start()


async def _write_key_uses(gateway: Gateway) -> None:
    """Store the last uses of keys at the end. They matter too little to fail the end of a server."""
    try:
        await gateway.keys.uses.write()
    except RegistryUnavailable as error:
        logger.warning("The last uses of keys were not stored: %s", error)
