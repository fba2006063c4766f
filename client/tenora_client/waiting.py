"""Wait for a version's smoke check: pure rules."""

from __future__ import annotations

from tenora_client.types import Version

#: Seconds between two looks at a version.
POLL_S = 0.5


def has_settled(version: Version) -> bool:
    """Return whether the smoke check has ended."""
    return version.state != "validating"


def not_settled(version: Version, timeout_s: float) -> str:
    """Describe a version whose smoke check takes too long."""
    return f"The smoke check of {version.name} did not end in {timeout_s:g} s. Wait longer, or ask the platform team."
