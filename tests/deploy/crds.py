"""JSON schemas of custom resources, from the definitions that their projects publish.

    python -m tests.deploy.crds VERSION <definition.yaml >tests/deploy/schemas/kind.json

Descriptions are left out. An unknown field is an error, as with ``kubectl --validate=strict``. Templates of pods are
left out as well: tests validate them as pods, by Kubernetes' schemas. The definitions in ``schemas/`` are those of
KubeRay 1.7.0, KEDA 2.20.2 and the Prometheus operator 0.93.0.
"""

import json
import sys
from typing import Any

import yaml

_KEPT = {"additionalProperties", "allOf", "anyOf", "enum", "items", "maximum", "maxItems", "maxLength", "minimum"}
_KEPT |= {"minItems", "minLength", "not", "oneOf", "pattern", "properties", "required", "type"}
_PODS = {"template"}


def schema_of(definition: dict[str, Any], version: str) -> dict[str, Any]:
    """Return the schema of one version of a definition."""
    (found,) = (one for one in definition["spec"]["versions"] if one["name"] == version)
    schema = _strict(found["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    schema["properties"].pop("status", None)
    return schema


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    kept = {name: _strict(value) for name, value in node.items() if name in _KEPT and name != "properties"}
    if "(?i)" in kept.get("pattern", ""):
        # In Python, flags come first.
        kept["pattern"] = "(?i)" + kept["pattern"].replace("(?i)", "")
    if "properties" in node:
        kept["properties"] = {
            name: {"type": "object"} if name in _PODS else _strict(value) for name, value in node["properties"].items()
        }
        if not node.get("x-kubernetes-preserve-unknown-fields") and "additionalProperties" not in kept:
            kept["additionalProperties"] = False
    return kept


if __name__ == "__main__":
    json.dump(schema_of(yaml.safe_load(sys.stdin), sys.argv[1]), sys.stdout, separators=(",", ":"), sort_keys=True)
    sys.stdout.write("\n")
