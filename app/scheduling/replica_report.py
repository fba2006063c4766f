"""State that an engine replica reports to the gateways."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from math import isfinite


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """State of an engine replica. Versions are named by their content digests.

    Attributes:
        node_id: id of the replica's HOME, so that a replica that comes back keeps its versions.
        slots: number of LoRA slots, which is its weight among the replicas. 0: it serves the base model only.
        ready: False while its engine starts or is dead.
        in_flight: waiting and running requests of all gateways.
        queued_tokens: weighted tokens of the waiting requests.
        tokens_per_s: measured service rate in weighted tokens. None or 0: not measured yet.
        resident: versions in slots.
        staged: versions in host memory.
        on_disk: versions in the disk cache.
        copy_s, stage_s, fetch_s: seconds of a copy into a slot, from the disk to host memory, and from the blob store.

    Raises:
        ValueError: the node id is empty, or a number is negative or not finite.
    """

    node_id: str
    slots: int
    ready: bool = True
    in_flight: int = 0
    queued_tokens: float = 0.0
    tokens_per_s: float | None = None
    resident: AbstractSet[str] = frozenset()
    staged: AbstractSet[str] = frozenset()
    on_disk: AbstractSet[str] = frozenset()
    copy_s: float = 0.02
    stage_s: float = 0.1
    fetch_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.node_id:
            raise ValueError("A replica's report has no node id.")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not (isfinite(value) and value >= 0):
                raise ValueError(
                    f"The report of replica {self.node_id} has {field.name} {value}. It must be 0 or more."
                )

    def cold_cost_s(self, version: str) -> float:
        """Seconds until a version could run here if nothing else was waiting; 0 if it is in a slot."""
        if version in self.resident:
            return 0.0
        if version in self.staged:
            return self.copy_s
        staging_s = self.copy_s + self.stage_s
        return staging_s if version in self.on_disk else staging_s + self.fetch_s
