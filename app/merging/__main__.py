"""Merging process, started as ``python -m app.merging``.

It reads one JSON request from standard input and writes one JSON answer to standard output. The result's files are in
the folder that the request names.
"""

import dataclasses
import importlib.metadata
import json
import os
import sys

from adapters.confinement import confine

#: Limit of open files: the libraries of torch and transformers, and two files for each source.
_OPEN_FILES = 256


def main() -> None:
    """Answer one request under the resource limits that it names."""
    # Libraries may print to standard output. Redirect that to standard error, and keep the original for the answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = json.load(sys.stdin)
    confine(**request["limits"], open_files=_OPEN_FILES)
    # Import torch under the limits too.
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
