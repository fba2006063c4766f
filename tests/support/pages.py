"""Pages of the documentation: their code blocks, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_RUN = "not run:"
_FENCE = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
_OPERATORS = "();<>|&\n"
_URL = re.compile(r"(?:\$(?:TENORA_)?URL|\$\{[^}]*\}|(?:https?://)?127\.0\.0\.1:8000)(/[^?\s]*)?(?:\?.*)?")
_BODY_OPTIONS = ("-d", "--data", "-F", "--form", "--data-binary")


@dataclass(frozen=True, slots=True)
class Block:
    """Code block of a page.

    Attributes:
        page: name relative to the repository.
        line: line of its fence.
        note: rest of the fence after the language, such as ``not run: needs a GPU``.
    """

    page: str
    line: int
    language: str
    note: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in ("sh", "python") and not self.note.startswith(NOT_RUN)


@dataclass(frozen=True, slots=True)
class Call:
    """Call of curl: method and path, without the query."""

    method: str
    path: str


def pages() -> list[str]:
    """Return README.md and the pages below docs/, without decision records."""
    return ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]


@cache
def read(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str) -> Iterator[Block]:
    for found in _FENCE.finditer(read(page)):
        indent, language, note, text = found.groups()
        line = read(page)[: found.start()].count("\n") + 1
        yield Block(page, line, language, note.strip(), re.sub(rf"^{indent}", "", text, flags=re.MULTILINE))


def shell_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks(page) if block.language == "sh"]


def script(page: str) -> str:
    """Return one shell script of all blocks of a page that run, in order; empty without any.

    Python blocks run with the interpreter that ``PYTHON`` names.
    """
    parts = [_as_shell(block) for block in blocks(page) if block.is_run]
    return "\n".join(parts)


def _as_shell(block: Block) -> str:
    return f"$PYTHON - <<'END'\n{block.text}END\n" if block.language == "python" else block.text


def inline_commands(page: str) -> Iterator[str]:
    """Yield commands of ``tenora`` and ``make`` in inline code."""
    prose = _FENCE.sub("", read(page))
    for found in re.finditer(r"`((?:\.venv/bin/)?(?:tenora|make) [^`]+)`", prose):
        yield " ".join(found[1].replace(r"\|", "|").split())


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each simple command in a shell script, without redirections and assignments before it.

    This is no shell: commands inside of double quotes are not seen, and here-documents are not supported.
    """
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"(^|\s)#(?: .*)?$", r"\1", text, flags=re.MULTILINE)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    command: list[str] = []
    redirected = False
    for word in [*lexer, "\n"]:
        if set(word) <= set(_OPERATORS):
            redirected = "\n" not in word and any(mark in word for mark in "<>")
            if not redirected:
                yield from _simple(command)
                command = []
        elif redirected:
            redirected = False
        else:
            command.append(word)


def _simple(words: list[str]) -> Iterator[list[str]]:
    while words and (re.fullmatch(r"\w+=.*", words[0], re.DOTALL) or words[0] in ("export", "exec")):
        words = words[1:]
    if words:
        yield words


def curl_call(words: list[str]) -> Call | None:
    """Return the request that a curl command sends to the server; None for another host."""
    paths = [found[1] or "/" for word in words if (found := _URL.fullmatch(word))]
    if not paths:
        return None
    methods = [after for word, after in pairwise(words) if word in ("-X", "--request")]
    default = "POST" if any(word in _BODY_OPTIONS for word in words) else "GET"
    return Call(methods[0] if methods else default, paths[0])
