"""The Helm chart: lint, golden renders, and the schemas of Kubernetes and of custom resources."""

import importlib
import json
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from app.ray.application import NAME, build, with_arguments
from app.settings import Settings
from tests.deploy.chart import CHART, COPIES, GOLDEN, ROOT, VALUES, Rendered, RenderFailed, golden, helm, pods, render
from tests.deploy.install import VALIDATE

SCHEMAS = Path(__file__).with_name("schemas")
RELEASES = ("1.31", "1.32", "1.33", "1.34")
CUSTOM = {"RayService", "ScaledObject", "ServiceMonitor", "PrometheusRule"}

rendered = cache(render)


def find(objects: list[Rendered], kind: str, name: str = "") -> Rendered:
    (found,) = (one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(name))
    return found


@pytest.mark.parametrize("name", VALUES)
def test_helm_lints_the_chart(name: str) -> None:
    helm("lint", "--strict", str(CHART), "-f", str(CHART / f"{name}.yaml"))


@pytest.mark.parametrize("name", VALUES)
def test_a_render_is_the_golden_one(name: str) -> None:
    """After a change of the chart, run ``python -m tests.deploy.chart`` and read the difference."""
    assert golden(name) == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_accepts_each_object_and_pod(release: str, tmp_path: Path) -> None:
    files = []
    for name in VALUES:
        objects = rendered(name)
        core = [one for one in objects if one["kind"] not in CUSTOM]
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump_all(core + [_named(pod.as_object()) for pod in pods(objects)]))
        files.append(str(path))
    command = [str(VALIDATE), "--kubernetes-version", release, "--strict", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Couldn't find schema" not in done.stdout + done.stderr


def _named(pod: Rendered) -> Rendered:
    return pod | {"metadata": pod["metadata"] | {"name": "pod"}}


def test_kubernetes_schemas_refuse_unknown_fields(tmp_path: Path) -> None:
    (pod, *_) = pods(rendered("values"))
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(_named(pod.as_object()) | {"spec": pod.spec | {"enableServiceLink": False}}))
    done = subprocess.run([str(VALIDATE), "--strict", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("values-fleet", "RayService"),
        ("values-keda", "ScaledObject"),
        ("values-keda", "ServiceMonitor"),
        ("values-servers", "PrometheusRule"),
    ],
)
def test_custom_resources_fit_their_definitions(name: str, kind: str) -> None:
    schema = json.loads((SCHEMAS / f"{kind}.json").read_text())
    found = find(rendered(name), kind)
    jsonschema.validate(found, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found | {"spec": found["spec"] | {"unknown": 1}}, schema)


def test_ray_accepts_the_configuration_of_serve() -> None:
    """The operator sends it to Ray, which reads it with this class."""
    from ray.serve.schema import ServeDeploySchema

    text = find(rendered("values-fleet"), "RayService")["spec"]["serveConfigV2"]
    config = ServeDeploySchema.model_validate(yaml.safe_load(text))
    (application,) = config.applications
    assert (application.name, config.proxy_location) == (NAME, "Disabled")
    assert with_arguments(Settings(), application.args).ray.max_replicas == 8
    module, _, name = application.import_path.partition(":")
    assert getattr(importlib.import_module(module), name) is build


def test_the_chart_has_the_releases_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (project["version"], project["version"])
    cluster = find(rendered("values-fleet"), "RayService")["spec"]["rayClusterConfig"]
    assert project["optional-dependencies"]["ray"] == [f"ray[serve]=={cluster['rayVersion']}"]


def test_each_kind_is_checked_by_a_schema() -> None:
    kinds = {one["kind"] for name in VALUES for one in rendered(name) if "/" in one["apiVersion"]}
    assert {kind for kind in kinds if (SCHEMAS / f"{kind}.json").exists()} == CUSTOM


def test_the_rules_are_those_of_prometheus(tmp_path: Path) -> None:
    rules = find(rendered("values-servers"), "PrometheusRule")["spec"]
    assert rules == yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    path, program = tmp_path / "rules.yml", shutil.which("promtool")
    assert program, "promtool is not installed: run deploy/ci/prepare.sh"
    path.write_text(yaml.safe_dump(rules))
    done = subprocess.run([program, "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_that_of_grafana() -> None:
    dashboard = find(rendered("values-servers"), "ConfigMap")["data"]["tenora.json"]
    assert json.loads(dashboard) == json.loads((ROOT / "deploy" / "grafana" / "tenora.json").read_text())


def test_scraped_servers_have_the_job_of_the_rules() -> None:
    (endpoint,) = find(rendered("values-servers"), "ServiceMonitor")["spec"]["endpoints"]
    assert {"targetLabel": "job", "replacement": "tenora"} in endpoint["relabelings"]
    assert endpoint["authorization"]["credentials"] == {"name": "tenora-metrics", "key": "key"}


def test_a_package_has_the_linked_files(tmp_path: Path) -> None:
    helm("package", str(CHART), "-d", str(tmp_path))
    (archive,) = tmp_path.glob("*.tgz")
    shown = helm("template", "tenora", str(archive), "--set", "metrics.rules=true,metrics.dashboard=true")
    assert {one["kind"] for one in yaml.safe_load_all(shown) if one} >= COPIES


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("values", {"replica": 2}, "Additional property replica is not allowed"),
        ("values", {"replicas": "2"}, "Invalid type. Expected: integer"),
        ("values", {"settings": {"TENORA_PEPPER": "secret"}}, "TENORA_PEPPER"),
        ("values", {"replicas": 2}, "set settings.TENORA_STORE_URL to s3://"),
        ("values", {"fleet": {"enabled": True}}, "set settings.TENORA_STORE_URL to s3://"),
        ("values-fleet", {"gpus": 1}, "The servers of a fleet have no engine"),
        ("values-fleet", {"fleet": {"minReplicas": 9}}, "fleet.minReplicas is larger than fleet.maxReplicas"),
        ("values-keda", {"keda": {"minReplicas": 9}}, "keda.minReplicas is larger than keda.maxReplicas"),
        ("values", {"resources": {"limits": {"memory": "12 GB"}}}, "memory"),
    ],
)
def test_wrong_values_are_refused(name: str, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RenderFailed) as caught:
        render(name, values)
    assert sentence in str(caught.value)
