"""Execution of one line of a batch through the inference service."""

import asyncio
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from adapters.errors import StorageError
from app.domain.access import Caller
from app.domain.batches import Chunk, LinePlace, LineResult
from app.domain.errors import (
    AdapterLoadFailed,
    AdapterNotReady,
    AdapterQuarantined,
    AdapterRetired,
    BudgetExceeded,
    Busy,
    EngineUnavailable,
    Forbidden,
    LimitExceeded,
    NotFound,
    QueueFull,
    RegistryUnavailable,
    TenoraError,
    WrongBase,
    row_of,
)
from app.services.batches import line_results
from app.services.batches.endpoints import checked_body
from app.services.batches.line_results import ADAPTER_UNAVAILABLE, LineIdentity
from app.services.batches.lines import BatchLine, parse_line
from app.services.bodies.parsing import SMALL_BYTES
from app.services.serving.checked_bodies import BodyChecks
from app.services.serving.inference import InferenceService
from app.services.serving.lanes import Lane, VersionGone

logger = logging.getLogger(__name__)

#: Errors that say nothing about the line: it runs again later.
LATER = (
    QueueFull,
    Busy,
    BudgetExceeded,
    LimitExceeded,
    EngineUnavailable,
    RegistryUnavailable,
    StorageError,
)
#: Errors of the version under which the line was validated.
_UNAVAILABLE = (
    NotFound,
    Forbidden,
    AdapterQuarantined,
    AdapterLoadFailed,
    AdapterRetired,
    AdapterNotReady,
    WrongBase,
    VersionGone,
)
_INTERNAL = "internal_error"


@dataclass(frozen=True, slots=True)
class Answered:
    """The line has an answer, which is durable on this server together with its usage."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The line has no answer and will never have one; its result is not durable yet."""

    result: LineResult


@dataclass(frozen=True, slots=True)
class Later:
    """The line could not run now."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Unexpected:
    """The server met an error that no rule covers. After a few of them the line has this result."""

    error: Exception
    result: LineResult


Outcome = Answered | Failed | Later | Unexpected


class LineRunner:
    """Runs lines under the rights of the key that created their batch.

    Args:
        weight: weight of a tenant's batches relative to its requests.
    """

    def __init__(self, inference: InferenceService, checks: BodyChecks, *, weight: float) -> None:
        self._inference, self._checks, self._weight = inference, checks, weight

    @property
    def requested_at(self) -> float:
        """Time at which the server's last request that is not a line went to the engine, by ``time.monotonic``."""
        return self._inference.requested_at

    async def run(self, caller: Caller, endpoint: str, chunk: Chunk, place: LinePlace, source: Path) -> Outcome:
        """Run one line once. A cancelled line leaves either a durable answer or nothing.

        Args:
            endpoint: the batch's route.
            source: local copy of the batch's input file.

        Raises:
            OSError: the local copy cannot be read.
        """
        parsed = await _parsed(await asyncio.to_thread(read_line, source, place), endpoint)
        line = LineIdentity(chunk, place.number, parsed.custom_id)
        lane = Lane(
            chunk.model,
            chunk.version_id,
            self._weight,
            lambda answer, version: line_results.answered(line, answer, version),
        )
        try:
            checked = checked_body(endpoint, self._checks, parsed.body)
            await self._inference.answer_line(caller, line.request_id, checked, lane)
        except LATER as error:
            return Later(error)
        except _UNAVAILABLE as error:
            return Failed(line_results.failed(line, ADAPTER_UNAVAILABLE, _unavailable(chunk, error)))
        except TenoraError as error:
            row = row_of(error)
            if row is None or row.status >= 500:
                return _unexpected(line, error)
            return Failed(line_results.refused(line, error, row))
        except Exception as error:
            logger.exception("A line of the batch %s failed.", chunk.batch_id)
            return _unexpected(line, error)
        return Answered()


async def _parsed(text: bytes, endpoint: str) -> BatchLine:
    if len(text) > SMALL_BYTES:
        return await asyncio.to_thread(parse_line, text, endpoint=endpoint, large=True)
    return parse_line(text, endpoint=endpoint)


def _unexpected(line: LineIdentity, error: Exception) -> Unexpected:
    message = f"Internal error. Give the platform team the request id {line.request_id}."
    return Unexpected(error, line_results.failed(line, _INTERNAL, message))


def read_line(source: Path, place: LinePlace) -> bytes:
    """Read a line of an input file. Blocks.

    Raises:
        OSError
    """
    descriptor = os.open(source, os.O_RDONLY)
    try:
        return os.pread(descriptor, place.length, place.offset)
    finally:
        os.close(descriptor)


def custom_id_of(text: bytes) -> str:
    """Return the caller's id of a validated line."""
    return str(json.loads(text)["custom_id"])


def _unavailable(chunk: Chunk, error: Exception) -> str:
    if isinstance(error, TenoraError):
        return error.message
    return f"The version {chunk.model} no longer exists."
