"""Order in which a server takes chunks of batches, and starts their lines. State in, decision out: no clock, no I/O.

- Tenants take turns: the tenant with the fewest lines in hand, relative to its weight, goes next.
- Batches of one tenant take turns too, so a small batch does not wait for a large one.
- Within a batch, a version that this server runs already goes first, then one that holds a slot. So the lines of an
  adapter run together, and it is loaded about once.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FreeChunks:
    """Chunks of one version in a batch that no server runs.

    Attributes:
        version_id: None for the base model.
        first: smallest number among them.
        count: number of them.
    """

    batch_id: str
    version_id: int | None
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class InHand:
    """A chunk that this server holds.

    Attributes:
        waiting: lines that have not been started.
        running: lines in flight.
    """

    batch_id: str
    version_id: int | None
    waiting: int
    running: int


class BatchTurns:
    """Turns of tenants and batches on one server."""

    def __init__(self) -> None:
        self._turn = 0
        #: Turn in which a tenant, or a batch, was last chosen.
        self._last: dict[Hashable, int] = {}

    def choose(
        self,
        free: Sequence[FreeChunks],
        in_hand: Sequence[InHand],
        *,
        tenants: Mapping[str, tuple[str, float]],
        resident: Collection[int | None],
    ) -> FreeChunks | None:
        """Choose the batch and version of the next chunk to take.

        Args:
            tenants: tenant and its weight, by batch. Other batches are not considered.
            resident: versions that hold a slot.
        """
        candidates = [chunks for chunks in free if chunks.batch_id in tenants and chunks.count > 0]
        if not candidates:
            return None
        lines, running = Counter[str](), {chunk.version_id for chunk in in_hand}
        for chunk in in_hand:
            if chunk.batch_id in tenants:
                lines[tenants[chunk.batch_id][0]] += chunk.waiting + chunk.running
        batches = {chunks.batch_id for chunks in candidates}
        batch_id = min(batches, key=lambda batch_id: self._rank(batch_id, tenants, lines))
        self._note(tenants[batch_id][0], batch_id)
        return min(
            (chunks for chunks in candidates if chunks.batch_id == batch_id),
            key=lambda chunks: (chunks.version_id not in running, chunks.version_id not in resident, chunks.first),
        )

    def _rank(
        self, batch_id: str, tenants: Mapping[str, tuple[str, float]], lines: Mapping[str, int]
    ) -> tuple[float, int, int, str]:
        tenant, weight = tenants[batch_id]
        last_of_tenant, last_of_batch = self._last.get(("tenant", tenant), 0), self._last.get(("batch", batch_id), 0)
        return lines[tenant] / weight, last_of_tenant, last_of_batch, batch_id

    def _note(self, tenant: str, batch_id: str) -> None:
        self._turn += 1
        self._last["tenant", tenant] = self._last["batch", batch_id] = self._turn

    def forget(self, batch_ids: Collection[str], tenants: Collection[str]) -> None:
        """Forget the turns of all batches and tenants but these."""
        kept: set[Hashable] = {("batch", batch_id) for batch_id in batch_ids} | {("tenant", name) for name in tenants}
        self._last = {name: turn for name, turn in self._last.items() if name in kept}


def next_line(
    in_hand: Iterable[InHand], *, tenants: Mapping[str, tuple[str, float]], room: Mapping[str, int]
) -> InHand | None:
    """Choose the chunk whose line starts next: of the tenant with the fewest lines in flight relative to its weight.

    Args:
        in_hand: chunks in the order in which they were taken.
        tenants: tenant and its weight, by batch. Lines of other batches do not start.
        room: lines of each batch that may start now, besides those in flight.
    """
    chunks = [chunk for chunk in in_hand if chunk.batch_id in tenants]
    running = Counter[str]()
    for chunk in chunks:
        running[tenants[chunk.batch_id][0]] += chunk.running
    able = [chunk for chunk in chunks if chunk.waiting > 0 and room.get(chunk.batch_id, 0) > 0]
    # min() keeps the order of chunks with equal ranks.
    return min(
        able,
        key=lambda chunk: running[tenants[chunk.batch_id][0]] / tenants[chunk.batch_id][1],
        default=None,
    )
