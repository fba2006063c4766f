"""Child process of :func:`adapters.sandbox.unpack_in_child`: one JSON request in, one JSON answer out."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from adapters.archive import unpack
from adapters.confinement import confine
from adapters.errors import AdapterRejected


def main() -> None:
    """Answer one request from standard input under the resource limits that it names."""
    request = json.load(sys.stdin)
    caps = {name: request[name] for name in ("config_bytes", "weights_bytes")}
    confine(cpu_seconds=request["cpu_seconds"], address_bytes=request["address_bytes"], file_bytes=max(caps.values()))
    json.dump(_answer(Path(request["archive"]), Path(request["folder"]), caps), sys.stdout)


def _answer(archive: Path, folder: Path, caps: dict[str, int]) -> dict[str, Any]:
    try:
        files = unpack(archive, folder, **caps)
    except AdapterRejected as error:
        return {"reasons": [dataclasses.asdict(reason) for reason in error.reasons]}
    except OSError as error:
        return {"errno": error.errno}
    return {"files": {name: {"digest": file.digest, "size": file.size} for name, file in files.items()}}


if __name__ == "__main__":
    main()
