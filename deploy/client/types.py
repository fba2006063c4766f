"""Generate the client's typed answers from the server's OpenAPI document.

    python -m deploy.client.types

datamodel-code-generator writes the classes; ``make test-clients`` installs it. The document is prepared for it:

- Only the components of ``ROOTS``, and what they refer to, are kept.
- Enumerations become plain strings, and fields that may be null may be absent, so that releases of client and server
  that differ understand each other.
- Descriptions of fields move to the docstring of their class.
"""

import argparse
import hashlib
import json
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from app.main import create_app
from app.settings import Settings
from deploy.client.sync import PACKAGE, formatted
from tests.clients.install import FOLDER

TARGET = PACKAGE / "types.py"
GENERATOR = FOLDER / "types" / "bin" / "datamodel-codegen"
#: Components that the client returns.
ROOTS = (
    *("Adapter", "Version", "Alias", "AliasReport", "AliasChange", "Canary", "Deletion", "Share", "SharedAdapter"),
    *("SharedVersion", "Pin", "Tenant", "TenantUsage", "Key", "NewKey", "LimitReport", "QuotaReport", "UsageReport"),
    *("Reason", "Prices", "ServerFacts", "Validation", "Batch", "File", "DeletedFile"),
    *("Request", "UsageSeries", "RunningCanary", "UploadRefusal", "AuditRow", "AuditVerification"),
)
#: ``Class.field`` of the document -> better name in Python.
RENAMED = {"Version.version": "number", "SharedVersion.version": "number"}
#: msgspec's sentinel for an absent field; None is what a caller expects.
_UNSET = (", UnsetType] = UNSET", "] = None")
_HEADER = '''"""Typed answers of the server, generated from its OpenAPI document by `make client-types`.

Fields that a release does not know are ignored.
"""
# Schemas: {digest}
'''
_OPTIONS = (
    *("--input-file-type", "openapi", "--output-model-type", "msgspec.Struct"),
    *("--target-python-version", "3.10", "--no-use-union-operator", "--use-standard-collections"),
    *("--use-schema-description", "--output-datetime-class", "datetime", "--keyword-only"),
    *("--base-class", "tenora_client.answers.Answer", "--formatters", "builtin", "--disable-timestamp"),
    *("--aliases", json.dumps(RENAMED)),
)


def main() -> None:
    argparse.ArgumentParser(description="Generate the client's typed answers.").parse_args()
    TARGET.write_text(generated(server_document()), encoding="utf-8")


def server_document() -> dict[str, Any]:
    """Return the OpenAPI document of this release's server."""
    with tempfile.TemporaryDirectory() as home:
        return create_app(Settings(home=Path(home))).openapi()


def generated(document: Mapping[str, Any]) -> str:
    """Return the source of the module.

    Raises:
        subprocess.CalledProcessError: the generator refused the document.
    """
    schemas = prepared(document)
    whole = {"openapi": "3.1.0", "info": {"title": "Tenora", "version": "1"}, "paths": {}}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "document.json"), Path(folder, "types.py")
        source.write_text(json.dumps({**whole, "components": {"schemas": schemas}}), encoding="utf-8")
        subprocess.run([GENERATOR, "--input", source, "--output", target, *_OPTIONS], check=True, cwd=folder)
        text = target.read_text(encoding="utf-8")
    body = text[text.index("from __future__") :].replace(*_UNSET).replace("kw_only=True", "frozen=True, kw_only=True")
    return formatted(_HEADER.format(digest=digest(schemas)) + body, TARGET, rules="F401,I,UP,RUF022")


def prepared(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the components that the client needs, in the form described above."""
    every = document["components"]["schemas"]
    wanted, left = set[str](), list(ROOTS)
    while left:
        if (name := left.pop()) not in wanted:
            wanted.add(name)
            left += _references(every[name])
    words = {name for name in wanted if every[name].get("type") != "object"}
    return {name: _documented(name, _tolerant(every[name], words)) for name in sorted(wanted - words)}


def digest(schemas: Mapping[str, Any]) -> str:
    """Return a digest of the prepared components, by which a test sees that the module is current."""
    return hashlib.sha256(json.dumps(schemas, sort_keys=True).encode()).hexdigest()


def _references(schema: Any) -> Iterator[str]:
    for key, value in schema.items() if isinstance(schema, dict) else enumerate(schema):
        if key == "$ref":
            yield value.rpartition("/")[2]
        elif isinstance(value, dict | list):
            yield from _references(value)


def _tolerant(schema: Any, words: set[str]) -> Any:
    """Drop what only validates: enumerations, constants, defaults and examples. ``words`` are components of strings."""
    if isinstance(schema, list):
        return [_tolerant(item, words) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "enum" in schema or "const" in schema or schema.get("$ref", "").rpartition("/")[2] in words:
        kind = schema.get("type") if schema.get("type") in ("boolean", "integer") else "string"
        return {"type": kind} | {key: schema[key] for key in ("description",) if key in schema}
    dropped = {"default", "example", "examples", "title"} if "properties" not in schema else {"title"}
    return {key: _tolerant(value, words) for key, value in schema.items() if key not in dropped}


def _documented(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Let nullable fields be absent and absent ones None, and move descriptions of fields to that of their class."""
    fields, required, lines = {}, set(schema.get("required", ())), []
    for field, found in schema["properties"].items():
        if text := found.get("description"):
            shown = RENAMED.get(f"{name}.{field}", field)
            sentence = f"{shown}: {text if text.endswith('.') else f'{text}.'}"
            lines += textwrap.wrap(sentence, 108, initial_indent=" " * 4, subsequent_indent=" " * 8)
        if {"type": "null"} in found.get("anyOf", ()):
            required.discard(field)
        bare = {key: value for key, value in found.items() if key != "description"}
        nullable = {"type": "null"} in found.get("anyOf", ())
        fields[field] = bare if nullable or field in required else {"anyOf": [bare, {"type": "null"}]}
    first = schema.get("description") or f"{_spaced(name)} as the server shows it."
    described = "\n".join([first, "", "Attributes:", *lines]) if lines else first
    return {"type": "object", "description": described, "properties": fields, "required": sorted(required)}


def _spaced(name: str) -> str:
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
    return words.strip().capitalize()


if __name__ == "__main__":
    main()
