"""Figures of the fault tests: one line of JSON per fault, in the file that ``FAULTS_REPORT`` names."""

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

#: Client-visible effect of each fault, as docs/operations.md shows it. Every test here has exactly one of them.
FAULTS = {
    "engine killed": "requests that run end with an error; 503 and `Retry-After` until it is back",
    "engine hung": "requests wait for `TENORA_ENGINE__HANG_S` (6 s here), then as if it had been killed",
    "API killed": "connections end; then none can be made until it is back",
    "one of two servers dies": "its connections end; the other goes on with its uploads, canaries and limits",
    "database restarted": "503 and `Retry-After`; streams that run go on",
    "database slow": "slower first tokens",
    "database silent": "503 and `Retry-After` after some seconds; streams that run go on",
    "database read-only": "inference goes on; changes, and tenants with limits, get 503",
    "database full": "inference goes on; changes, and tenants with limits, get 503",
    "store down": "503 for adapters that this node does not have, and for uploads; all others go on",
    "store slow": "slower first tokens of adapters that this node does not have",
    "store returning wrong bytes": "503 (`adapter_bytes_corrupt`) for that adapter, never an answer; all others go on",
    "store throttling": "as if it were down",
    "disk full": "503 for adapters that this node does not have, and for uploads; all others go on",
    "clock jumped": "nothing",
    "migration while serving": "slower first tokens while tables are locked",
}


@dataclass(frozen=True)
class Measured:
    """Effect of one fault.

    Attributes:
        results: result -> number of requests, from the fault until full recovery.
        recovery_s: from the end of the fault (of a kill: from the kill) until the last failure.
    """

    fault: str
    results: Counter[str]
    recovery_s: float

    def write(self, seed: int) -> None:
        """Append the measurement to the report, if there is one."""
        if self.fault not in FAULTS:
            raise ValueError(f"{self.fault!r} is none of FAULTS")
        if path := os.environ.get("FAULTS_REPORT"):
            line = {"fault": self.fault, "results": self.results, "recovery_s": round(self.recovery_s, 2), "seed": seed}
            with Path(path).open("a") as report:
                report.write(json.dumps(line) + "\n")
