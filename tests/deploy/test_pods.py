"""Properties of each pod that the chart creates: hardening, secrets, settings, and times of shutdown."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from app.cli.configuration import load_settings
from app.cli.engines import app
from app.ray.certificates import create_authority
from tests.deploy.chart import VALUES, Pod, Rendered, environment, pods, render

STORE = {"TENORA_BASE_MODEL": "base", "TENORA_STORE_URL": "s3://bucket/prefix"}

rendered = cache(render)


def all_pods() -> list[Pod]:
    return [pod for name in VALUES for pod in pods(rendered(name))]


def check_hardening(pod: Pod, *, has_token: bool) -> None:
    assert pod.spec["enableServiceLinks"] is False
    assert pod.spec["automountServiceAccountToken"] is has_token
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod.spec)
    assert not any("hostPath" in volume for volume in pod.spec["volumes"])
    security = pod.spec["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"], security["runAsGroup"]) == (True, 10001, 10001)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod.containers:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"]["requests"])
        assert {"memory", "ephemeral-storage"} <= set(container["resources"]["limits"])


def check_shutdown(pod: Pod) -> None:
    """The kubelet waits for the drain, the grace and half a minute more."""
    if pod.component in {"server", "engine"}:
        variables = environment(pod.spec["containers"][0])
        waits = float(variables["TENORA_DRAIN_SECONDS"]) + float(variables["TENORA_GRACE_SECONDS"])
        assert pod.spec["terminationGracePeriodSeconds"] == waits + 30
        assert not any("preStop" in container.get("lifecycle", {}) for container in pod.containers)


def check_mounts(pod: Pod) -> None:
    volumes = {volume["name"] for volume in pod.spec["volumes"]} | {"home"}
    for container in pod.containers:
        paths = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", ())}
        assert set(paths.values()) <= volumes
        # The root is read-only, so temporary files need a volume.
        assert paths["/tmp"] == "tmp"  # noqa: S108 - the path in the container
        # The authority's key issues certificates for any process, so only the container that does that sees it.
        assert ("authority" in paths.values()) == (container["name"] == "certificate")


@pytest.mark.parametrize("name", VALUES)
def test_each_pod_is_hardened(name: str) -> None:
    for pod in pods(rendered(name)):
        # Only Ray's autoscaler, in the head's pod, calls Kubernetes.
        check_hardening(pod, has_token=pod.component == "engine-head")
        check_shutdown(pod)
        check_mounts(pod)


def test_the_sums_of_the_defaults() -> None:
    waits = {pod.spec.get("terminationGracePeriodSeconds") for pod in all_pods() if pod.component == "server"}
    assert waits == {15 + 60 + 30}


@settings(max_examples=20)
@given(
    drain=st.integers(0, 600),
    grace=st.integers(0, 3600),
    replicas=st.integers(0, 9),
    gpus=st.integers(0, 8),
    keda=st.booleans(),
    fleet=st.booleans(),
    scale_pods=st.booleans(),
)
def test_any_values_give_hardened_pods(
    drain: int, grace: int, replicas: int, gpus: int, keda: bool, fleet: bool, scale_pods: bool
) -> None:
    values = {
        "drainSeconds": drain,
        "graceSeconds": grace,
        "replicas": replicas,
        "gpus": 0 if fleet else gpus,
        "keda": {"enabled": keda},
        "fleet": {"enabled": fleet, "scalePods": scale_pods, "gpus": gpus},
        "settings": STORE,
    }
    found = list(pods(render("values", values)))
    assert {pod.component for pod in found} == {"server", "migrate"} | ({"engine-head", "engine"} if fleet else set())
    for pod in found:
        check_hardening(pod, has_token=scale_pods and pod.component == "engine-head")
        check_shutdown(pod)
        check_mounts(pod)
        limits = pod.spec["containers"][0]["resources"]["limits"]
        has_engine = pod.component == ("engine" if fleet else "server")
        assert limits.get("nvidia.com/gpu", 0) == (gpus if has_engine else 0)


def test_the_servers_read_every_setting_that_they_get() -> None:
    for pod in all_pods():
        for container in pod.containers:
            variables = {name: value for name, value in environment(container).items() if name.startswith("TENORA_")}
            with patch.dict(os.environ, variables | {"TENORA_DATABASE_URL": "postgresql://db/tenora"}, clear=True):
                load_settings()


def test_an_init_process_starts_each_container() -> None:
    """KubeRay replaces the entry point of its two containers by a shell."""
    for pod in all_pods():
        for container in pod.containers:
            assert "command" not in container or container["command"][:2] == ["tini", "--"], container["name"]


def test_containers_with_home_have_the_homes_of_the_image() -> None:
    for pod in all_pods():
        for container in pod.containers:
            if "/var/lib/tenora" in {mount["mountPath"] for mount in container["volumeMounts"]}:
                assert not {"HOME", "TENORA_HOME"} & set(environment(container)), container["name"]


def test_replicas_get_no_pepper() -> None:
    engines = [pod for pod in all_pods() if pod.component in {"engine", "engine-head"}]
    assert len(engines) == 2
    for pod in engines:
        assert not any("PEPPER" in name for container in pod.containers for name in environment(container))


def test_processes_of_ray_demand_token_and_tls() -> None:
    found = [one for pod in pods(rendered("values-fleet")) for one in pod.containers if one["name"] in RAY]
    assert {one["name"] for one in found} == RAY
    options = autoscaler(rendered("values-fleet"))
    for container in (*found, options):
        variables = environment(container)
        assert (variables["RAY_AUTH_MODE"], variables["RAY_USE_TLS"]) == ("token", "1")
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        for name in ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"):
            assert str(Path(variables[name]).parent) in mounts


RAY = {"ray", "ray-head", "ray-worker", "tenora"}


def autoscaler(objects: list[Rendered]) -> Rendered:
    (service,) = (one for one in objects if one["kind"] == "RayService")
    return service["spec"]["rayClusterConfig"]["autoscalerOptions"]


def test_the_certificate_containers_issue_what_ray_checks(tmp_path: Path) -> None:
    authority, openssl = tmp_path / "authority", shutil.which("openssl")
    assert openssl is not None
    create_authority(authority)
    found = [pod for pod in pods(rendered("values-fleet")) if pod.component in {"server", "engine", "engine-head"}]
    for number, pod in enumerate(found):
        container, folder = pod.spec["initContainers"][0], tmp_path / str(number)
        folders = {"/etc/ray/authority": str(authority), "/etc/ray/tls": str(folder)}
        fields = {"$(POD_IP)": "10.4.5.6", "$(FQ_RAY_IP)": "tenora-x-head-svc.ai.svc.cluster.local"}
        words = [replaced(word, folders | fields) for word in container["args"]]
        assert words[0] == "engines"
        result = CliRunner().invoke(app, words[1:], env={"TENORA_HOME": str(tmp_path)})
        assert result.exit_code == 0, result.output
        names = [("-verify_ip", "10.4.5.6")]
        if pod.component == "engine-head":
            names.append(("-verify_hostname", fields["$(FQ_RAY_IP)"]))
            names.append(("-verify_hostname", head_of(found)))
        for option in names:
            command = [openssl, "verify", "-CAfile", str(authority / "tls.crt"), *option, str(folder / "tls.crt")]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


def replaced(text: str, names: dict[str, str]) -> str:
    return re.sub("|".join(map(re.escape, names)), lambda match: names[match[0]], text)


def head_of(found: list[Pod]) -> str:
    """Return the host at which the servers look for the cluster."""
    (server,) = (pod for pod in found if pod.component == "server")
    return environment(server.spec["containers"][0])["TENORA_RAY__ADDRESS"].removesuffix(":6379")


def test_kuberay_creates_the_service_that_servers_look_for() -> None:
    (service,) = (one for one in rendered("values-fleet") if one["kind"] == "RayService")
    found = list(pods(rendered("values-fleet")))
    assert head_of(found) == f"{service['metadata']['name']}-head-svc.ai.svc.cluster.local"
