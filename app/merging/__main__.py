"""``python -m app.merging``: the merging process.

One JSON request on standard input, one JSON answer on standard output; the files are left in the request's folder.
"""

import dataclasses
import importlib.metadata
import json
import os
import sys

from adapters.confinement import confine

#: Of torch's and transformers' libraries, and two for each source.
_OPEN_FILES = 256


def main() -> None:
    """Answer one request under the resource limits that it names."""
    # Libraries may print: only the answer goes to where the parent reads it.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = json.load(sys.stdin)
    confine(**request["limits"], open_files=_OPEN_FILES)
    # Under the limits too: this imports torch.
    from app.merging.run import Job, merge

    reasons = merge(Job(**request["job"]))
    with answers:
        json.dump(
            {
                "reasons": [dataclasses.asdict(reason) for reason in reasons],
                "versions": {name: importlib.metadata.version(name) for name in ("peft", "torch")},
            },
            answers,
        )


if __name__ == "__main__":
    main()
