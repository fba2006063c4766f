"""Every command on a page exists: commands of the CLI with their options, routes, targets of make, and files."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer

from app.main import create_app
from app.settings import Settings
from tenora_client.cli.plugins import subcommands
from tenora_client.cli.root import app as cli
from tests.support.pages import ROOT, Block, Call, blocks, commands, curl_call, inline_commands, pages, shell_blocks

BLOCKS = shell_blocks()
INLINE = sorted({(page, command) for page in pages() for command in inline_commands(page)})
#: Path of a file in the repository, possibly with a shell pattern.
FILE = re.compile(r"(?<![\w/.-])((?:app|adapters|client|deploy|docs|migrations|tests)/[\w./*-]+)")
#: Part of a written command that stands for something else: ``FOLDER``, ``[--s3]``, ``...``.
PLACEHOLDER = re.compile(r"\[.*\]?|.*\]|[A-Z][A-Z-]*|\.\.\.")


@cache
def root() -> Any:
    return typer.main.get_command(cli)


@cache
def children_of(group: Any) -> dict[str, Any]:
    return subcommands(group)


@cache
def routes() -> list[tuple[str, re.Pattern[str]]]:
    document = create_app(Settings()).openapi()
    return [
        (method.upper(), re.compile(re.sub(r"\{[^}]+\}", "[^/]+", path)))
        for path, methods in document["paths"].items()
        for method in methods
    ]


@cache
def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def defects(words: list[str]) -> Iterator[str]:
    """Yield what is wrong with one command."""
    program, *arguments = words
    if program.rpartition("/")[2] == "tenora":
        yield from tenora_defects(arguments)
    elif program == "make":
        yield from (f"no target {word}" for word in arguments if "=" not in word and word not in targets())
    elif program == "curl" and (call := curl_call(words)) and not is_route(call):
        yield f"no route {call.method} {call.path}"
    elif program.startswith(("python", ".venv/bin/python")) and "-m" in arguments:
        yield from module_defects(arguments[arguments.index("-m") + 1])


def tenora_defects(arguments: list[str]) -> Iterator[str]:
    """Parse the arguments with the real command, but convert no value: files need not exist."""
    command, context = root(), root().context_class(root(), info_name="tenora")
    while (children := children_of(command)) and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        if name not in children or children[name].hidden:
            yield f"no command {context.command_path} {name}"
            return
        command = children[name]
        context = command.context_class(command, info_name=name, parent=context)
    try:
        values, left, _ = command.make_parser(context).parse_args(args=arguments)
    except typer.BadParameter as error:
        yield f"{context.command_path}: {error}"
        return
    except Exception as error:  # noqa: BLE001 - Typer's copy of click has no public name for usage errors
        yield f"{context.command_path}: {error}"
        return
    if left and not children_of(command):
        yield f"{context.command_path}: too many arguments {left}"
    elif "help" not in values:
        missing = [one.name for one in command.params if one.required and values.get(one.name) in (None, ())]
        yield from (f"{context.command_path}: {name} is missing" for name in missing)


def is_route(call: Call) -> bool:
    return any(method == call.method and pattern.fullmatch(call.path) for method, pattern in routes())


def module_defects(module: str) -> Iterator[str]:
    path = ROOT / module.replace(".", "/")
    if module.split(".")[0] in ("tests", "app", "deploy") and not (path.with_suffix(".py").exists() or path.is_dir()):
        yield f"no module {module}"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_commands_of_a_block_exist(block: Block) -> None:
    assert [defect for words in commands(block.text) for defect in defects(words)] == []


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_the_files_of_a_block_exist(block: Block) -> None:
    assert [name for name in FILE.findall(block.text) if not list(ROOT.glob(name))] == []


def test_a_fence_says_sh_and_why_it_is_not_run() -> None:
    languages = {block.language for page in pages() for block in blocks(page)}
    assert not languages & {"bash", "shell", "console", "zsh"}
    assert [str(block) for block in BLOCKS if block.note and not re.fullmatch(r"not run: [^`]+", block.note)] == []


@pytest.mark.parametrize(("page", "command"), INLINE, ids=lambda value: str(value)[:60])
def test_a_command_in_the_text_exists(page: str, command: str) -> None:
    program, *arguments = shlex.split(command)
    if program == "make":
        assert [word for word in arguments if "=" not in word and word not in targets()] == []
        return
    found, known = root(), {"--help"}
    for word in arguments:
        if word.startswith("--"):
            option = re.split(r"[=\]]", word)[0]
            assert option in known | flags(found), f"{page}: {command}"
        elif (children := children_of(found)) and not PLACEHOLDER.fullmatch(word):
            assert word in children, f"{page}: {command}"
            assert not children[word].hidden, f"{page}: {command}"
            found = children[word]


def flags(command: Any) -> set[str]:
    """Return the options of a command. Some benchmarks parse theirs themselves, which may be any of the lab's."""
    own = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    return own | lab_options() if command.context_settings.get("ignore_unknown_options") else own


@cache
def lab_options() -> set[str]:
    sources = (path.read_text() for path in (ROOT / "app" / "lab").rglob("*.py"))
    return {option for source in sources for option in re.findall(r'"(--[\w-]+)"', source)}


@pytest.mark.parametrize(
    ("line", "defect"),
    [
        ("tenora serve", "no command tenora serve"),
        ("tenora adapters pusch x", "no command tenora adapters pusch"),
        ("KEY=$(tenora keys create a --tennant b)", "--tennant"),
        ("echo | .venv/bin/tenora tenants show", "tenant is missing"),
        ("tenora server gc now --dry-run", "too many arguments"),
        ('curl -f "$URL/v1/modelz" -H "a: b"', "no route GET /v1/modelz"),
        ('curl "${TENORA_URL:-http://127.0.0.1:8000}/v1/models" -d {}', "no route POST /v1/models"),
        ("make serv DEVICE=gpu", "no target serv"),
        ("x=1 python3.11 -m tests.fault.table", "no module tests.fault.table"),
    ],
)
def test_a_wrong_command_is_found(line: str, defect: str) -> None:
    (found,) = (one for words in commands(f"# a comment\ntrue && {line} > out # tail\n") for one in defects(words))
    assert defect in found
