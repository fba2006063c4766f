"""The server's pod as the chart renders it, with ``podman play kube``. It needs tests.deploy.install."""

import json
import subprocess
from pathlib import Path
from typing import Any

from app.demo.train import Demo
from tests.containers.hardened import SETTINGS, START_S, STOP_S, answers, oracle, publish, readable, wait_ready
from tests.containers.image import IMAGE
from tests.containers.podman import FOLDER, Container, Watch, podman, run
from tests.deploy.chart import pods, render
from tests.support.server import free_port

POD, VOLUME = "tenora-pod", "tenora-pod-home"
#: PostgreSQL is the chart's requirement. This pod has SQLite and a folder in HOME.
SECRETS = {"TENORA_PEPPER": "a pepper of this test, with more than 32 bytes"}


def run_pod(demo: Demo, watch: Watch) -> None:
    """Run the stage.

    Raises:
        AssertionError: the pod behaves otherwise than a container with compose's hardening.
    """
    readable(demo)
    port = free_port()
    file = FOLDER / "pod.yaml"
    file.write_text(json.dumps(manifest(port)))
    _remove(file)
    try:
        podman("volume", "create", VOLUME)
        home = ["run", "--rm", f"--volume={VOLUME}:/var/lib/tenora", "--env=TENORA_HOME=/var/lib/tenora"]
        home += [f"--env={name}={value}" for name, value in SECRETS.items()]
        key = json.loads(podman(*home, IMAGE, "server", "init", "--json"))["key"]
        podman("play", "kube", str(file))
        url = f"http://127.0.0.1:{port}"
        wait_ready(url, _logs)
        watch.lap("ready as a pod")
        assert answers(url, publish(url, key, demo)) == oracle(demo)
        watch.lap("right answers of a pod")
        server = Container(f"{POD}-tenora")
        assert podman("exec", server.name, "cat", "/proc/1/comm").strip() == "tini"
        assert server.stop(STOP_S) == 0, _logs()
        watch.lap("SIGTERM to a pod")
    finally:
        _remove(file)


def manifest(port: int) -> dict[str, Any]:
    """Return the pod of the chart's StatefulSet, with what podman cannot do taken out."""
    settings = dict(setting.split("=", 1) for setting in SETTINGS)
    found = render("values", {"settings": settings | {"TENORA_STORE_URL": "file:///var/lib/tenora/blobs"}})
    (pod,) = (pod for pod in pods(found) if pod.owner.startswith("StatefulSet/"))
    spec = pod.spec
    (container,) = spec["containers"]
    container["image"] = IMAGE
    container["imagePullPolicy"] = "Never"
    container["resources"] = {"limits": {"memory": "6Gi"}}
    container["env"] = [_plain(one) for one in container.get("env", ()) if _is_known(one)]
    container["env"] += [{"name": name, "value": value} for name, value in SECRETS.items()]
    for port_of in container["ports"]:
        port_of |= {"hostIP": "127.0.0.1", "hostPort": port}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        container.pop(probe, None)  # podman needs systemd for them
    # podman makes a volume of an emptyDir that only root may write to, unless the image has the folder for all users.
    # The /dev/shm that it makes otherwise has the size of containers.conf.
    spec["volumes"] = [one for one in spec.get("volumes", ()) if one["name"] not in {"home", "shm"}]
    container["volumeMounts"] = [one for one in container["volumeMounts"] if one["name"] != "shm"]
    spec["volumes"].append({"name": "home", "persistentVolumeClaim": {"claimName": VOLUME}})
    spec["volumes"].append({"name": "models", "hostPath": {"path": str(FOLDER / "models"), "type": "Directory"}})
    container["volumeMounts"].append({"name": "models", "mountPath": "/models", "readOnly": True})
    spec["restartPolicy"] = "Never"
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": spec}


def _is_known(variable: dict[str, Any]) -> bool:
    """Return whether a variable has a value here: this pod has no Secret."""
    return "secretKeyRef" not in variable.get("valueFrom", {})


def _plain(variable: dict[str, Any]) -> dict[str, Any]:
    return variable if "value" in variable else {"name": variable["name"], "value": POD}


def _logs() -> str:
    names = run("podman", "ps", "--all", f"--filter=pod={POD}", "--format={{.Names}}").split()
    return "".join(run("podman", "logs", name) for name in names)


def _remove(file: Path) -> None:
    for command in (["play", "kube", "--down", str(file)], ["volume", "rm", "--force", VOLUME]):
        subprocess.run(["podman", *command], capture_output=True, check=False, timeout=START_S)
