"""Rendered objects of the Helm chart.

python -m tests.deploy.chart    # writes tests/deploy/golden from the chart
"""

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.install import HELM

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "tenora"
GOLDEN = Path(__file__).with_name("golden")
#: Values files of the chart, by their names.
VALUES = ("values", "values-gpu", "values-servers", "values-keda", "values-fleet")
#: Kinds that have the text of other files, which a golden render would repeat.
COPIES = {"PrometheusRule", "ConfigMap"}

Rendered = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """Template of a pod, with the name of its object."""

    owner: str
    template: Rendered

    @property
    def spec(self) -> Rendered:
        return self.template["spec"]

    @property
    def containers(self) -> list[Rendered]:
        return [*self.spec.get("initContainers", ()), *self.spec["containers"]]

    @property
    def component(self) -> str:
        return self.template["metadata"]["labels"]["app.kubernetes.io/component"]

    def as_object(self) -> Rendered:
        return {"apiVersion": "v1", "kind": "Pod", **self.template}


class RenderFailed(Exception):
    """Helm refused the values."""


def helm(*arguments: str, values: Mapping[str, Any] | None = None) -> str:
    text = None if values is None else json.dumps(values)
    done = subprocess.run([HELM, *arguments], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RenderFailed(done.stdout + done.stderr)
    return done.stdout


def render(name: str, values: Mapping[str, Any] | None = None) -> list[Rendered]:
    """Render the chart with one of its values files, and with further values."""
    file = str(CHART / f"{name}.yaml")
    text = helm("template", "tenora", str(CHART), "-n", "ai", "-f", file, "-f", "-", values=values or {})
    return [document for document in yaml.safe_load_all(text) if document]


def pods(objects: list[Rendered]) -> Iterator[Pod]:
    """Yield the pods that Kubernetes and KubeRay create from the objects."""
    for one in objects:
        name, spec = f"{one['kind']}/{one['metadata']['name']}", one.get("spec", {})
        if one["kind"] in {"StatefulSet", "Job"}:
            yield Pod(name, spec["template"])
        elif one["kind"] == "RayService":
            cluster = spec["rayClusterConfig"]
            for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
                yield Pod(name, group["template"])


def environment(container: Rendered) -> dict[str, str]:
    """Return the environment of a container; values from Secrets and fields are placeholders."""
    return {one["name"]: one.get("value", f"from-{one['name'].lower()}") for one in container.get("env", ())}


def golden(name: str) -> str:
    """Return the text of a render, without copies of other files."""
    objects = [one for one in render(name) if one["kind"] not in COPIES]
    return yaml.safe_dump_all(objects, sort_keys=True, width=120)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each in VALUES:
        (GOLDEN / f"{each}.yaml").write_text(golden(each), encoding="utf-8")
