"""Ray's transport: handles of the deployment, whose messages travel by gRPC as bytes that nothing unpickles here."""

import asyncio
from typing import Any

import grpc
from ray.exceptions import RayError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle

from app.ray.application import deployed
from app.ray.transport import Deployed, FrameStream, NoReplicas, ReplicaLost, Target

#: Errors of a replica that ended, of a connection that broke, and of a method that raised.
_LOST = (RayError, RayServeException, grpc.RpcError, ConnectionError)

#: Limit of a question about the state of the deployment, in seconds.
_STATE_S = 5.0


class HandleFrames:
    """Frames of one answer, from a streaming response."""

    def __init__(self, response: Any) -> None:
        self._response = response

    async def next(self) -> bytes | None:
        try:
            frame: bytes = await self._response.__anext__()
        except StopAsyncIteration:
            return None
        except DeploymentUnavailableError:
            raise NoReplicas from None
        except _LOST:
            raise ReplicaLost from None
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            # Ray also cancels a response when its replica is gone.
            raise ReplicaLost from None
        return frame

    def cancel(self) -> None:
        self._response.cancel()


class HandleTransport:
    """Transport over the handle of the deployment.

    By gRPC, a gateway that dies ends its streams at the replicas, and a replica's exceptions never reach this process:
    its methods return bytes only.
    """

    def __init__(self, handle: "DeploymentHandle[Any]") -> None:
        self._handle = handle.options(_by_reference=False, response_serialization="noop")
        self._answers = self._handle.options(method_name="answer", stream=True)
        self._asking: asyncio.Future[Deployed] | None = None

    def answer(self, request: bytes, *, target: Target) -> FrameStream:
        return HandleFrames(self._answers.options(session_id=str(target)).remote(request))

    async def call(self, method: str, argument: bytes, *, target: Target) -> bytes:
        handle = self._handle.options(method_name=method, session_id=str(target))
        try:
            result: bytes = await handle.remote(argument)
        except DeploymentUnavailableError:
            raise NoReplicas from None
        except _LOST:
            raise ReplicaLost from None
        return result

    async def wake(self) -> None:
        # Any call makes Ray start a replica. This one does nothing there.
        await self.call("outcome", b"", target=Target())

    async def deployed(self) -> Deployed:
        # While the head is gone, Ray's call does not return.
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(asyncio.to_thread(deployed))
        await asyncio.wait((self._asking,), timeout=_STATE_S)
        if not self._asking.done() or self._asking.exception() is not None:
            raise ReplicaLost
        return self._asking.result()

    async def call_all(self, method: str, argument: bytes, *, timeout_s: float) -> list[bytes]:
        try:
            # Its own methods that collect results lose all of them if one replica hangs.
            results = await self._handle.broadcast(method, argument)._fetch_replica_results_async()
        except DeploymentUnavailableError:
            raise NoReplicas from None
        calls = [asyncio.ensure_future(result.get_async()) for result in results]
        done, late = await asyncio.wait(calls, timeout=timeout_s)
        for call in late:
            call.cancel()
        return [call.result() for call in done if not call.cancelled() and call.exception() is None]

    async def close(self) -> None:
        await asyncio.to_thread(self._handle.shutdown)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
