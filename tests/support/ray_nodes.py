"""Cluster of Ray with several nodes on this machine, each with a loopback address and a HOME, as of several machines.

    python -m tests.support.ray_nodes HEAD_HOME HOME...

It prints the cluster's address once all nodes have joined. Each line on stdin is the HOME of a node to add, and is
answered with a line. The end of stdin ends the cluster. The head offers no cores, so replicas start on the other nodes.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from app.ray.library import prepare
from app.ray.token import token_path
from tests.support.server import environment, processes_of

ROOT = Path(__file__).parents[2]
_STOP_S = 60
#: Loopback addresses of the nodes. Ray replaces 127.0.0.1 in addresses of clusters.
_NETWORK = "127.0.1."


class Nodes:
    """Nodes of a running cluster.

    Attributes:
        settings: settings of the servers and commands that use the cluster.
    """

    def __init__(self, process: "subprocess.Popen[str]", settings: dict[str, Any]) -> None:
        self._process, self.settings = process, settings

    def add(self, home: Path) -> None:
        """Add a node. It has one core."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{home}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline()

    def kill(self, home: Path) -> None:
        """Kill all processes of a node, as a loss of its machine does."""
        processes = processes_of(home)
        assert processes
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@contextlib.contextmanager
def ray_nodes(head: Path, homes: Sequence[Path], base: Path, settings: dict[str, Any]) -> Iterator[Nodes]:
    """Run a cluster with a node for each HOME, and stop it with all its processes at the end."""
    for home in (head, *homes):
        home.mkdir(parents=True, exist_ok=True)
    settings = settings | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path(head))}
    command = [sys.executable, "-m", "tests.support.ray_nodes", str(head), *map(str, homes)]
    with (head / "nodes.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(head, base, **settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address, (head / "nodes.log").read_text()
            yield Nodes(process, settings | {"TENORA_RAY__ADDRESS": address, "TENORA_RAY__HOST": f"{_NETWORK}1"})
        finally:
            process.stdin.close()
            process.stdout.close()
            process.wait(_STOP_S)
            left = [one for home in (head, *homes) for one in processes_of(home)]
            for one in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            psutil.wait_procs(left, timeout=_STOP_S)


def main(head: Path, homes: Sequence[Path]) -> None:
    prepare(head)
    # The name is short, as paths of sockets are limited.
    folder = os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="tenora-")
    from ray.cluster_utils import Cluster

    ours = sys.stdout
    # Ray prints.
    sys.stdout = sys.stderr
    cluster = Cluster()
    number = 0

    def add(home: Path, **options: Any) -> None:
        nonlocal number
        number += 1
        os.environ["TENORA_HOME"] = str(home)
        cluster.add_node(node_ip_address=f"{_NETWORK}{number}", include_dashboard=False, **options)

    try:
        add(head, num_cpus=0)
        for home in homes:
            add(home)
        print(cluster.address, file=ours, flush=True)
        for line in sys.stdin:
            add(Path(line.strip()))
            print("added", file=ours, flush=True)
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]])
