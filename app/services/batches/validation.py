"""Validation of a batch: all lines of its file, as the route would validate them, and the quote."""

import asyncio
import hashlib
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from app.domain.access import Caller
from app.domain.adapters import ResolvedVersion
from app.domain.batches import Batch, Chunk, ChunkState, LinePlace, Problem
from app.domain.errors import Busy, InvalidRequest, RegistryUnavailable, TenoraError, row_of
from app.services.batches.budgets import AdapterUse, Amounts
from app.services.batches.endpoints import checked_body
from app.services.batches.lines import BatchLine, LineReader, RawLine, parse_line, too_long
from app.services.batches.pacing import Pace
from app.services.batches.resolution import BatchNames
from app.services.bodies.parsing import SMALL_BYTES
from app.services.bodies.reading import BodyReader
from app.services.limits.service import LimitService
from app.services.prompts.tokens import PromptTokens
from app.services.serving.checked_bodies import BodyChecks
from app.services.serving.preparation import Preparation, Prepared, Terms
from app.services.serving.targets import Target
from app.settings import BatchSettings

#: Most problems that are reported.
MOST_PROBLEMS = 1000
#: Most lines of a chunk.
CHUNK_LINES = 256

#: Attempts of a line while the server is busy, and seconds between two of them.
_ATTEMPTS, _WAIT_S = 20, 1.0
_DIGEST_BYTES = 16

Result = TypeVar("Result")


@dataclass(slots=True)
class _Group:
    """Lines of one version: number, offset and length of each, in one array, and their amounts."""

    target: Target
    places: "array[int]" = field(default_factory=lambda: array("Q"))
    amounts: Amounts = field(default_factory=Amounts)


@dataclass(slots=True)
class Validation:
    """Result of a validation.

    Attributes:
        problems: at most :data:`MOST_PROBLEMS`; if there are any, the batch cannot run.
        lines: number of valid lines.
    """

    problems: list[Problem] = field(default_factory=list)
    lines: int = 0
    total: Amounts = field(default_factory=Amounts)
    _groups: dict[int | None, _Group] = field(default_factory=dict)

    def add(self, place: LinePlace, target: Target, prompt_tokens: int, output_tokens: int, cost: int) -> None:
        """Add a valid line."""
        group = self._groups.setdefault(target.version_id, _Group(target))
        group.places.extend((place.number, place.offset, place.length))
        group.amounts = group.amounts.plus(prompt_tokens, output_tokens, cost)
        self.total = self.total.plus(prompt_tokens, output_tokens, cost)
        self.lines += 1

    def uses(self) -> Iterator[AdapterUse]:
        """Return the amounts by adapter, without the base model's."""
        of_adapter: dict[int, tuple[ResolvedVersion, Amounts]] = {}
        for group in self._groups.values():
            if (version := group.target.resolved) is not None:
                _, sums = of_adapter.get(version.adapter_id, (version, Amounts()))
                more = group.amounts
                sums = sums.plus(more.prompt_tokens, more.output_tokens, more.cost)
                of_adapter[version.adapter_id] = version, sums
        return (AdapterUse(version, sums) for version, sums in of_adapter.values())

    def chunks(self, batch_id: str) -> Iterator[Chunk]:
        """Return the chunks: lines of one version each, in the order of the file."""
        number = 0
        for version_id, group in self._groups.items():
            model, places, step = group.target.version or group.target.name, group.places, 3 * CHUNK_LINES
            for start in range(0, len(places), step):
                some = places[start : start + step]
                lines = tuple(map(LinePlace, some[::3], some[1::3], some[2::3]))
                yield Chunk(batch_id, number, version_id, model, lines, ChunkState.WAITING)
                number += 1


class Validator:
    """Validator of batches. It runs on the event loop and pauses often.

    Raises (``validate``):
        RegistryUnavailable, Busy: the server could not validate a line for a while.
        OSError: the file could not be read.
    """

    def __init__(
        self,
        checks: BodyChecks,
        preparation: Preparation,
        tokens: PromptTokens,
        limits: LimitService,
        bodies: BodyReader,
        settings: BatchSettings,
    ) -> None:
        self._checks, self._preparation, self._tokens = checks, preparation, tokens
        self._limits, self._bodies, self._settings = limits, bodies, settings

    async def validate(
        self, batch: Batch, caller: Caller, path: Path, names: BatchNames, *, between: Callable[[], Awaitable[None]]
    ) -> Validation:
        """Validate all lines of a file.

        Args:
            between: called between slabs of lines, to take turns with other batches. Its errors end the validation.
        """
        validation, seen, pace = Validation(), dict[bytes, int](), Pace()
        count = 0
        async with aclosing(_slabs(path, self._settings.line_bytes)) as slabs:
            async for slab in slabs:
                await between()
                for raw in slab:
                    count += 1
                    if count > self._settings.lines:
                        validation.problems.append(_too_many(self._settings.lines, raw.place.number))
                        return validation
                    problem = await self._line(batch, caller, raw, names, seen, validation)
                    if problem is not None:
                        validation.problems.append(problem)
                        if len(validation.problems) == MOST_PROBLEMS:
                            return validation
                    await pace.step()
        if count == 0:
            validation.problems.append(Problem("empty_file", "The file has no lines. Send a request in each line."))
        return validation

    async def _line(
        self,
        batch: Batch,
        caller: Caller,
        raw: RawLine,
        names: BatchNames,
        seen: dict[bytes, int],
        validation: Validation,
    ) -> Problem | None:
        number = raw.place.number
        try:
            line = await self._parsed(batch, caller, raw)
        except TenoraError as error:
            return _problem(error, number, param=error.param)
        digest = hashlib.blake2b(line.custom_id.encode(), digest_size=_DIGEST_BYTES).digest()
        if (first := seen.setdefault(digest, number)) != number:
            message = f"custom_id is the same as in line {first}; it must be unique in the file."
            return Problem("duplicate_custom_id", message, number, "custom_id")
        try:
            await self._check(batch, caller, raw, line, names, validation)
        except (Busy, RegistryUnavailable):
            raise
        except TenoraError as error:
            return _problem(error, number, param=f"body.{error.param}" if error.param else "body")
        return None

    async def _check(
        self,
        batch: Batch,
        caller: Caller,
        raw: RawLine,
        line: BatchLine,
        names: BatchNames,
        validation: Validation,
    ) -> None:
        checked = checked_body(batch.endpoint, self._checks, line.body)
        terms = Terms(batch.id, lane=_lane(caller))
        prepared: Prepared = await _patiently(lambda: self._preparation.prepare(caller, checked, terms, names))
        bound, version = self._tokens.most(prepared.request), prepared.target.resolved
        try:
            self._limits.check_size(caller, bound, version)
        except InvalidRequest as error:
            raise checked.renamed(error) from None
        cost = self._limits.prices.of(version).of_batch.most(bound.prompt, bound.output)
        validation.add(raw.place, prepared.target, bound.prompt, bound.output, cost)

    async def _parsed(self, batch: Batch, caller: Caller, raw: RawLine) -> BatchLine:
        content = raw.content
        if content is None:
            raise too_long(self._settings.line_bytes)
        if len(content) <= SMALL_BYTES:
            return parse_line(content, endpoint=batch.endpoint)

        def parse() -> BatchLine:
            return parse_line(content, endpoint=batch.endpoint, large=True)

        return await _patiently(lambda: self._bodies.in_turn(parse, share=_lane(caller)))


async def _slabs(path: Path, most_bytes: int) -> AsyncGenerator[Sequence[RawLine]]:
    reader = await asyncio.to_thread(LineReader, path, most_bytes=most_bytes)
    try:
        while slab := await asyncio.to_thread(reader.slab):
            yield slab
    finally:
        reader.close()


async def _patiently(work: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat work while the server is too busy for it, for a while."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return await work()
        except (Busy, RegistryUnavailable):
            await asyncio.sleep(_WAIT_S)
    return await work()


def _lane(caller: Caller) -> str:
    return f"{caller.tenant_slug}/batch"


def _problem(error: TenoraError, line: int, *, param: str | None) -> Problem:
    row = row_of(error)
    return Problem(row.code if row else "internal_error", error.message, line, param)


def _too_many(most: int, line: int) -> Problem:
    message = f"The file has more than {most} lines, which is the limit. Split it into several batches."
    return Problem("too_many_lines", message, line)
