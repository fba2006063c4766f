"""Generate the reference tables of docs/ from the code: settings, commands, errors, request fields, patches of vLLM.

    .venv/bin/python -m deploy.docs.reference    # or: make docs

Each table stands between two markers, such as ``<!-- settings -->`` and ``<!-- /settings -->``. tests/unit/docs
compares the pages with the tables. The table of faults has measured times, so
``python -m tests.support.faults.table`` writes that one.
"""

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from app.api.errors import problem_of
from app.domain.errors import ROWS, Row
from app.engine.vllm.patches.ledger import LEDGER
from app.services.bodies import field_table
from app.services.bodies.field_table import FieldTable, Supported
from app.settings import PREFIX, Settings, secret_setting_names
from app.settings_files import SUFFIX
from deploy.client.methods import methods as client_methods
from deploy.docs.remedies import REMEDIES
from tenora_client.cli.plugins import subcommands
from tenora_client.cli.root import app as cli

DOCS = Path(__file__).resolve().parents[2] / "docs"
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_KINDS = {
    bool: "`true` or `false`",
    str: "text",
    int: "whole number",
    float: "number",
    Path: "path",
    SecretStr: "text, secret",
    dict: "JSON object",
    tuple: "JSON list",
    frozenset: "JSON list",
}
_MODEL = "see [Model names](#model-names)"
_BOUNDS = {"ge": "from", "gt": "above", "le": "to"}


@dataclass(frozen=True, slots=True)
class Table:
    """Generated part of a page.

    Attributes:
        marker: name in the two comments that enclose it.
    """

    page: str
    marker: str
    content: Callable[[], str]

    def write(self, folder: Path = DOCS) -> None:
        path = folder / self.page
        path.write_text(replace_block(path.read_text(), self.marker, self.content()))

    def written(self, folder: Path = DOCS) -> str:
        """Return the table as it stands on the page now."""
        return block((folder / self.page).read_text(), self.marker)


def main() -> None:
    for table in TABLES:
        table.write()


def block(text: str, marker: str) -> str:
    """Return the text between a pair of markers.

    Raises:
        ValueError: the text does not have exactly one such pair.
    """
    found = re.findall(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", text, re.DOTALL)
    if len(found) != 1:
        raise ValueError(f"The page has {len(found)} blocks <!-- {marker} -->. It needs one.")
    return str(found[0])


def replace_block(text: str, marker: str, content: str) -> str:
    """Return the text with other content between a pair of markers."""
    before = block(text, marker)
    begin, end = f"<!-- {marker} -->\n", f"<!-- /{marker} -->"
    return text.replace(f"{begin}{before}{end}", f"{begin}{content.rstrip()}\n{end}")


def settings() -> str:
    """Return one table for each group of settings."""
    groups: list[tuple[str, str, type[BaseModel]]] = [("General", PREFIX, Settings), *_groups(Settings)]
    return "\n".join(_settings_group(*group) for group in groups)


def secret_files() -> str:
    """Return the list of variables that name files of secrets."""
    return "".join(f"- `{name}{SUFFIX}`\n" for name in sorted(secret_setting_names()))


def _groups(model: type[BaseModel]) -> Iterator[tuple[str, str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        if (inner := _model_of(field)) is not None:
            yield name.capitalize(), f"{PREFIX}{name.upper()}__", inner


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _settings_group(title: str, prefix: str, model: type[BaseModel]) -> str:
    fields = {name: field for name, field in model.model_fields.items() if _model_of(field) is None}
    rows = [
        (f"`{prefix}{name.upper()}`", _default(field), _values(field), field.description or "")
        for name, field in fields.items()
    ]
    about = _summary(model) if model is not Settings else "Settings that belong to no group."
    return f"## {title}\n\n{about}\n\n{_markdown(('setting', 'default', 'value', 'meaning'), rows)}"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value in (None, "", (), frozenset(), {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    shown = f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
    return f"{shown} ({units})" if (units := _in_units(value)) else shown


def _in_units(value: object) -> str:
    """Return a whole number of KiB or more with its unit; else an empty string."""
    for size, unit in _UNITS:
        if isinstance(value, int) and value >= size and value % size == 0:
            return f"{value // size} {unit}"
    return ""


def _values(field: FieldInfo) -> str:
    """Describe the values that a setting takes: its type, with the bounds or the choices."""
    return _kind(field.annotation, field.metadata)


def _kind(annotation: Any, metadata: Sequence[Any]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0], arguments[1].metadata if isinstance(arguments[1], FieldInfo) else arguments[1:])
    if origin in (Union, UnionType):
        return " or ".join(_kind(one, metadata) for one in arguments if one is not type(None))
    if origin is Literal:
        return ", ".join(f"`{choice}`" if choice else "empty" for choice in arguments)
    bounds = [(word, getattr(rule, name)) for name, word in _BOUNDS.items() for rule in metadata if hasattr(rule, name)]
    return " ".join((_KINDS[origin or annotation], *(f"{word} {_in_units(bound) or bound}" for word, bound in bounds)))


def commands() -> str:
    """Return the table of all commands with their arguments and options."""
    rows = [
        (f"`{' '.join((name, *_arguments(command)))}`", ", ".join(_options(command)), _first_sentence(command.help))
        for name, command in sorted(command_tree().items())
    ]
    return _markdown(("command", "options", "purpose"), rows)


def command_tree() -> dict[str, Any]:
    """Return every command that does something, by its full name such as ``tenora adapters push``."""
    return dict(_commands("tenora", typer.main.get_command(cli)))


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = subcommands(command)
    if not children:
        yield name, command
    for inner, child in children.items():
        if not child.hidden:
            yield from _commands(f"{name} {inner}", child)


def _arguments(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            shown = (parameter.metavar or parameter.name or "").upper()
            yield shown if parameter.required else f"[{shown}]"


def _options(command: Any) -> Iterator[str]:
    if command.context_settings.get("ignore_unknown_options"):
        yield "those that `--help` shows"
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden and parameter.name != "help":
            flags = " / ".join((*parameter.opts, *parameter.secondary_opts))
            yield f"`{flags}`" + (" (required)" if parameter.required else "")


def errors() -> str:
    """Return the table of error codes, by status."""
    rows = sorted({(row.status, row.code, row.type, _summary(kind)) for kind, row in ROWS.items()} | _other_errors())
    return _markdown(
        ("code", "status", "type", "meaning"),
        [(f"`{code}`", str(status), f"`{kind}`", meaning) for status, code, kind, meaning in rows],
    )


def _other_errors() -> set[tuple[int, str, str, str]]:
    """Return the rows of errors that the HTTP layer maps itself."""
    malformed = RequestValidationError([{"type": "missing", "loc": ("body",), "input": None, "msg": ""}])
    meanings: dict[Row, str] = {
        problem_of(malformed).row: "The body cannot be parsed, or a field or parameter has the wrong form.",
        problem_of(RuntimeError()).row: "Unexpected error. The server's log has it under the request id.",
    }
    return {(row.status, row.code, row.type, meaning) for row, meaning in meanings.items()}


def remedies() -> str:
    """Return the table of first steps after each error code, in the order of the codes' names."""
    statuses: dict[str, set[int]] = {}
    for row in [*ROWS.values(), *(Row(status, kind, code) for status, code, kind, _ in _other_errors())]:
        statuses.setdefault(row.code, set()).add(row.status)
    rows = [
        (f"`{code}`", ", ".join(map(str, sorted(statuses[code]))), REMEDIES[code].client, REMEDIES[code].operator)
        for code in sorted(statuses)
    ]
    return _markdown(("code", "status", "caller", "platform team"), rows)


def fields(supported: Mapping[str, Supported], *, model: bool = False) -> str:
    """Return the table of supported fields. Neighbours with the same rule share a row.

    Args:
        model: whether the fields that name the model come first.
    """
    rows = [(", ".join(f"`{name}`" for name in ("model", "adapter_id")), _MODEL)] if model else []
    for allowed, group in itertools.groupby(supported, lambda name: supported[name].allowed):
        rows.append((", ".join(f"`{name}`" for name in group), allowed))
    return _markdown(("field", "allowed"), rows)


def _own(table: FieldTable) -> str:
    """Return the fields that a table has in addition to those of all OpenAI routes."""
    return fields({name: field for name, field in table.supported.items() if name not in field_table.OPENAI})


def ignored_fields() -> str:
    """Return the table of ignored fields by route."""
    rows = []
    for routes, table in _ROUTES.items():
        if names := [*sorted(table.ignored), *table.nested]:
            rows.append((routes, ", ".join(f"`{name}`" for name in names)))
    return _markdown(("where", "ignored"), rows)


def refused_fields() -> str:
    """Return the table of refused fields that have a way out."""
    rows = [
        (routes, f"`{name}`", way_out) for routes, table in _ROUTES.items() for name, way_out in table.refused.items()
    ]
    return _markdown(("where", "refused", "instead"), rows)


_ROUTES = {
    "completions": field_table.COMPLETIONS,
    "chats": field_table.CHAT,
    "responses": field_table.RESPONSES,
    "messages": field_table.MESSAGES,
    "LoRAX's `parameters`": field_table.LORAX,
}


def patches() -> str:
    """Return the table of the patches of vLLM, required ones first."""
    return _markdown(
        ("patch", "needed", "targets in vLLM", "process", "file", "reason", "upstream", "can go when"),
        [
            (
                f"`{patch.name}`",
                "required" if patch.required else "optional",
                ", ".join(f"`{target.removeprefix('vllm.')}`" for target in patch.targets),
                ", ".join(patch.processes),
                f"[`{patch.module}`](../app/engine/vllm/{patch.module})",
                patch.why,
                patch.upstream,
                patch.remove_when,
            )
            for patch in LEDGER
        ],
    )


def _summary(described: object) -> str:
    """Return the first paragraph of a docstring as Markdown."""
    paragraph = (inspect.getdoc(described) or "").partition("\n\n")[0]
    return " ".join(paragraph.replace("``", "`").split())


def _first_sentence(text: str | None) -> str:
    paragraph = " ".join((text or "").partition("\n\n")[0].replace("``", "`").split())
    return re.split(r"(?<=\.)\s+(?=[A-Z])", paragraph)[0]


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("|  |", "| |").replace("|  |", "| |")


TABLES = (
    Table("settings.md", "settings", settings),
    Table("settings.md", "secret-files", secret_files),
    Table("cli.md", "commands", commands),
    Table("client.md", "client-methods", client_methods),
    Table("http.md", "errors", errors),
    Table("troubleshooting.md", "remedies", remedies),
    Table("http.md", "fields-openai", lambda: fields(field_table.OPENAI, model=True)),
    Table("http.md", "fields-completions", lambda: _own(field_table.COMPLETIONS)),
    Table("http.md", "fields-chat", lambda: _own(field_table.CHAT)),
    Table("http.md", "fields-responses", lambda: fields(field_table.RESPONSES.supported, model=True)),
    Table("http.md", "fields-messages", lambda: fields(field_table.MESSAGES.supported, model=True)),
    Table("http.md", "fields-tokenize", lambda: fields(field_table.TOKENIZE.supported, model=True)),
    Table("http.md", "fields-detokenize", lambda: fields(field_table.DETOKENIZE.supported, model=True)),
    Table("http.md", "fields-lorax", lambda: fields(field_table.LORAX.supported)),
    Table("http.md", "fields-ignored", ignored_fields),
    Table("http.md", "fields-refused", refused_fields),
    Table("vllm.md", "patches", patches),
)

if __name__ == "__main__":
    main()
