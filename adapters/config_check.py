"""Child process of :func:`adapters.sandbox.inspect_in_child`: check ``adapter_config.json`` without the weights."""

import dataclasses
import json
import sys
from pathlib import Path

from adapters.confinement import confine
from adapters.errors import grouped
from adapters.manifest import MAX_CONFIG_BYTES, inspect_manifest


def main() -> None:
    """Answer one request from standard input under the resource limits that it names."""
    request = json.load(sys.stdin)
    confine(cpu_seconds=request["cpu_seconds"], address_bytes=request["address_bytes"], file_bytes=0)
    with Path(request["config"]).open("rb") as file:
        _, reasons = inspect_manifest(file.read(MAX_CONFIG_BYTES + 1))
    json.dump({"reasons": [dataclasses.asdict(reason) for reason in grouped(reasons)]}, sys.stdout)


if __name__ == "__main__":
    main()
