"""Wait for a version's smoke check or a batch's end: pure rules."""

from __future__ import annotations

from tenora_client.types import Batch, Version

#: Seconds between two looks at a version, and between the first two at a batch.
POLL_S = 0.5
#: Most seconds between two looks at a batch.
LONGEST_POLL_S = 5.0


def has_settled(version: Version) -> bool:
    """Return whether the smoke check has ended."""
    return version.state != "validating"


def not_settled(version: Version, timeout_s: float) -> str:
    """Describe a version whose smoke check takes too long."""
    return f"The smoke check of {version.name} did not end in {timeout_s:g} s. Wait longer, or ask the platform team."


def not_ended(batch: Batch, timeout_s: float) -> str:
    """Describe a batch that takes too long."""
    return f"The batch {batch.id} is {batch.status} after {timeout_s:g} s. It goes on: wait for it again, or cancel it."
