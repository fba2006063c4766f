"""``tenora`` whose workers have a defect: ``python -m tests.support.broken_workers serve``."""

import os

from app.engine.vllm import arguments
from app.engine.vllm.worker.extension import WorkerExtension
from tests.support.broken_kernels import DEFECTS

#: Environment variable that names the defect.
DEFECT = "BROKEN_KERNELS"


class Broken(WorkerExtension):
    """Worker with the defect that the environment names."""

    def tenora_prepare(self) -> None:
        super().tenora_prepare()
        DEFECTS[os.environ[DEFECT]]().__enter__()


if __name__ == "__main__":
    from tenora_client.cli.root import main

    arguments.WORKER_EXTENSION = "tests.support.broken_workers.Broken"
    main()
