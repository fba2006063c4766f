"""Check the prose of code and docs: docstrings, comments, texts and pages.

    python deploy/lint/prose.py [FOLDER]    # default: this repository

Prints ``file:line: problem: what to do`` for each finding and exits with 1 if there are any. The rules:

- A docstring does not begin with a word that hides its subject, such as "what" or "who".
- No docstring, comment, string or page says whoever, nobody or somebody. Pages include those of deploy/.
- No sentence of README.md, docs/ and deploy/benchmarks/RESULTS.md is longer than 30 words.
- No docstring, comment or page of ``PAGES``, and no string of app and adapters, has one of ``PHRASES``.
- No module is imported under the name ``stored``.

Standard library only. Comments are tokenized only in files whose text has a banned word: most of them have none.
"""

import ast
import io
import re
import sys
import tokenize
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("app", "adapters", "client", "migrations", "tests", "deploy")
PAGES = ("README.md", "docs", "deploy/benchmarks/RESULTS.md")
#: Folder of further pages, which are checked for ``PEOPLE`` only.
MORE_PAGES = "deploy"
#: Files other than Python whose comments begin with ``#``.
HASH_COMMENTS = ("*.sh", "*.yml", "*.conf", "Makefile", "pyproject.toml")
MAX_WORDS = 30

FIRST_WORDS = ("what", "who", "whom", "whose", "whoever", "whether", "those", "nobody", "somebody")

#: A file without a match of this needs no parser: no docstring begins with one of FIRST_WORDS, nothing is renamed.
_PARSED = re.compile(rf"""["']\W*(?:{"|".join(FIRST_WORDS)})\b| as stored\b""", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Phrase:
    """Phrase of our own making.

    Attributes:
        key: literal part of it in lower case. The pattern is searched only in texts that have it, which is fast.
    """

    key: str
    pattern: re.Pattern[str]
    advice: str


def _phrase(key: str, pattern: str, advice: str) -> Phrase:
    return Phrase(key, re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), advice)


#: Banned in strings too.
PEOPLE = tuple(
    _phrase(word, word, "name the person or thing: user, operator, caller, client")
    for word in ("whoever", "nobody", "somebody")
)
PHRASES = (
    _phrase(" told", "(?:is|are|was|were|be|been|being) told(?! to | apart)", "say which message is shown, and where"),
    _phrase(" so", "(?:says|said|told) so", "say what is said"),
    _phrase(" own", "of (?:its|their|his|her) own", 'write "a separate ...", or "its ..."'),
    _phrase("so many", "so many", "give the number, or leave it out"),
    _phrase("beside", "beside", 'write "next to", "together with" or "while"'),
    _phrase("anew", "anew", 'write "again"'),
    _phrase(" had", "(?:has|had) had", "use the simple past"),
    _phrase("as it is", r"as it is(?=\W*$|[.,;:)])", 'write "unchanged"'),
    _phrase("as they are", r"as they are(?=\W*$|[.,;:)])", 'write "unchanged"'),
    _phrase(", allowed", r"found [^;\n]{1,80}?, allowed", "say what happened, then what to do"),
    _phrase("is no tenant", "is no tenant's", "say what the key is"),
    *(
        _phrase(word, word, "use a full clause")
        for word in (
            "thereof",
            "thereby",
            "therein",
            "whereof",
            "whereby",
            "wherein",
            "hereby",
            "hence",
            "thence",
            "lest",
        )
    ),
    _phrase("in the mean", "in the mean", 'write "on average"'),
    _phrase("serves on", "serves on", 'write "continues to serve"'),
    _phrase("anybody", "anybody", "name the person: user, operator, client"),
    _phrase("everybody", "everybody", "name the people: users, operators, clients"),
    _phrase("what be", "what (?:becomes|became) of", "name the outcome"),
    _phrase("as good as", "as good as", "say exactly what holds"),
    *(
        _phrase(
            word.lower(), f"(?-i:{word}) (?:do|does|is|are|has|have|was|were|can|may|must)", "use the normal word order"
        )
        for word in ("Never", "Nor", "Not only", "Only then")
    ),
)

RULES = (*PEOPLE, *PHRASES)

_FOUND = "value of a reason's field `found`, which clients may compare"

#: Files of which nothing is checked -> the reason. Names are relative to the root.
DATA_FILES = {
    "deploy/lint/prose.py": "it holds the banned words",
    "tests/unit/lint/test_prose.py": "it plants defects",
}
#: (file, whole string, a dash for each value in it) in which a banned word is data -> the reason.
DATA_STRINGS = {
    ("tests/support/postgres.py", "nobody"): "name of a Unix account",
    ("adapters/archive/tarball.py", "- with bytes of its own"): _FOUND,
    ("adapters/archive/tarball.py", "a folder with bytes of its own"): _FOUND,
    ("adapters/archive/zipped.py", "a folder with bytes of its own"): _FOUND,
    ("app/api/multipart.py", "a part beside the part -"): _FOUND,
}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One problem at one line."""

    path: str
    line: int
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}: {self.advice}"


@dataclass(frozen=True, slots=True)
class Text:
    """Piece of prose joined from one or more lines, with code and links blanked out.

    Attributes:
        starts: offset in ``words`` at which each line begins, ascending from 0.
        lines: number of each of these lines in the file.
    """

    words: str
    starts: Sequence[int]
    lines: Sequence[int]

    @classmethod
    def of(cls, rows: Iterable[tuple[int, str]]) -> "Text":
        """Join (line number, text) pairs with blanks."""
        words, starts, lines = "", [], []
        for number, row in rows:
            starts.append(len(words))
            lines.append(number)
            words += row.strip() + " "
        return cls(_plain(words), starts or [0], lines or [1])

    def line(self, offset: int) -> int:
        return self.lines[bisect_right(self.starts, offset) - 1]


def _plain(words: str) -> str:
    """Replace code by one word and links by their text, without moving the text behind them."""
    words = re.sub(r"(`+)(?:(?!\1).)+\1", lambda found: "Code".ljust(len(found[0]), "x"), words)
    words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", lambda found: found[1].ljust(len(found[0])), words)
    return re.sub(r"https?://\S+", lambda found: "Code".ljust(len(found[0]), "x"), words)


def main() -> None:
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    findings = check(root)
    for finding in findings:
        print(finding)  # noqa: T201 - this is the output of a command
    raise SystemExit(1 if findings else 0)


def check(root: Path) -> list[Finding]:
    """Check all files below a folder that is laid out like this repository."""
    return sorted(set(_check_files(root)))


def _check_files(root: Path) -> Iterator[Finding]:
    for folder in PACKAGES:
        for path in sorted((root / folder).rglob("*.py")):
            yield from _unless_data(root, path, check_module)
    for path in _with_hash_comments(root):
        yield from _unless_data(root, path, check_comments)
    for page in PAGES:
        found = [root / page] if page.endswith(".md") else sorted((root / page).rglob("*.md"))
        for path in found:
            if path.exists():
                yield from _unless_data(root, path, check_page)
    for path in sorted((root / MORE_PAGES).rglob("*.md")):
        yield from _unless_data(root, path, check_people)


def _with_hash_comments(root: Path) -> Iterator[Path]:
    for pattern in HASH_COMMENTS:
        yield from root.glob(pattern)
        for folder in PACKAGES:
            yield from (root / folder).rglob(pattern)


def _unless_data(root: Path, path: Path, rule: Callable[[str, str], Iterator[Finding]]) -> Iterator[Finding]:
    name = path.relative_to(root).as_posix()
    if name not in DATA_FILES:
        yield from rule(name, path.read_text())


def check_module(name: str, source: str) -> Iterator[Finding]:
    suspicious = _is_suspicious(source)
    if not (suspicious or _PARSED.search(source)):
        return
    tree = ast.parse(source, name)
    seen = set()  # docstrings, and pieces of f-strings
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from _imports(name, node)
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (docstring := _docstring(node)) is not None:
                seen.add(id(docstring))
                yield from _docstring_findings(name, docstring, suspicious=suspicious)
        elif suspicious and isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in seen:
            seen.update(map(id, getattr(node, "values", ())))
            yield from _string_findings(name, node)
    if suspicious:
        for text in _comments(source):
            yield from _findings(name, text, RULES)


def _is_suspicious(source: str) -> bool:
    """Return whether a file's text has a banned word or phrase anywhere, also across the lines of a comment."""
    joined = " ".join(row.strip(" #:") for row in source.split("\n"))
    return any(_found(joined, RULES))


def _imports(name: str, node: ast.ImportFrom | ast.Import) -> Iterator[Finding]:
    for alias in node.names:
        if alias.asname == "stored":
            yield Finding(name, node.lineno, f"{alias.name} is imported as stored", "import it under its own name")


def _docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Constant | None:
    if not node.body or not isinstance(first := node.body[0], ast.Expr):
        return None
    value = first.value
    return value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _docstring_findings(name: str, docstring: ast.Constant, *, suspicious: bool) -> Iterator[Finding]:
    words = _words(docstring)
    first = re.match(r"\W*([A-Za-z]+)", words)
    if first and first[1].lower() in FIRST_WORDS:
        yield Finding(
            name, docstring.lineno, f"The docstring begins with {first[1]!r}", "begin with a verb or a noun phrase"
        )
    if suspicious:
        yield from _findings(name, Text.of(enumerate(words.split("\n"), docstring.lineno)), RULES)


def _string_findings(name: str, node: ast.Constant | ast.JoinedStr) -> Iterator[Finding]:
    """Check a string. People read those of app and adapters, so the rules for phrases hold there too."""
    words = _words(node)
    if (name, words) not in DATA_STRINGS:
        rules = RULES if name.startswith(("app/", "adapters/")) else PEOPLE
        yield from _findings(name, Text(words, [0], [node.lineno]), rules)


def _words(node: ast.expr) -> str:
    """Return a string's text, with a dash for each value that is formatted into it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_words, node.values))
    if isinstance(node, ast.FormattedValue):
        return "-"
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def check_comments(name: str, source: str) -> Iterator[Finding]:
    """Check the comments of a file that is not Python."""
    rows = ((number, row) for number, row in enumerate(source.split("\n"), 1))
    for text in _blocks((number, found[1]) for number, row in rows if (found := re.search(r"(?:^|\s)#:?\s+(.*)", row))):
        yield from _findings(name, text, RULES)


def _comments(source: str) -> Iterator[Text]:
    """Yield the comments of a module, with consecutive lines joined."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    yield from _blocks(
        (token.start[0], token.string.lstrip("#:")) for token in tokens if token.type == tokenize.COMMENT
    )


def _blocks(rows: Iterable[tuple[int, str]]) -> Iterator[Text]:
    block: list[tuple[int, str]] = []
    for number, row in rows:
        if block and number != block[-1][0] + 1:
            yield Text.of(block)
            block = []
        block.append((number, row))
    if block:
        yield Text.of(block)


def _findings(name: str, text: Text, rules: Sequence[Phrase]) -> Iterator[Finding]:
    for rule, found in _found(text.words, rules):
        yield Finding(name, text.line(found.start()), f"{found[0]!r}", rule.advice)


def _found(words: str, rules: Sequence[Phrase]) -> Iterator[tuple[Phrase, re.Match[str]]]:
    lowered = words.lower()
    for rule in rules:
        if rule.key in lowered:
            yield from ((rule, found) for found in rule.pattern.finditer(words))


def check_page(name: str, source: str) -> Iterator[Finding]:
    """Check a page in Markdown."""
    for text, counted in _units(source):
        yield from _findings(name, text, RULES)
        for sentence in _sentences(text.words) if counted else ():
            words = len(re.findall(r"\S*\w\S*", sentence[0]))
            if words > MAX_WORDS:
                shown = " ".join(sentence[0].split()[:6])
                problem = f"The sentence {shown!r}... has {words} words"
                yield Finding(name, text.line(sentence.start()), problem, f"split it, {MAX_WORDS} are the most")


def check_people(name: str, source: str) -> Iterator[Finding]:
    """Check a page in Markdown for ``PEOPLE`` only."""
    for text, _ in _units(source):
        yield from _findings(name, text, PEOPLE)


def _units(source: str) -> Iterator[tuple[Text, bool]]:
    """Yield headings, paragraphs, list items and cells of tables, each with whether its sentences are counted."""
    paragraph: list[tuple[int, str]] = []
    fence = ""
    for number, row in enumerate([*source.split("\n"), ""], 1):
        if (mark := re.match(r"\s*(?:[-*+] )?\s*(```+|~~~+)", row)) and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
            row = ""
        elif fence:
            continue
        heading, table = re.match(r"#+ ", row), re.match(r"\s*\|", row)
        ends = not row.strip() or heading or table or re.match(r"\s*(?:[-*+]|\d+\.) |\s*<!--|\s*>", row)
        if ends and paragraph:
            yield Text.of(paragraph), True
            paragraph = []
        if heading:
            yield Text.of([(number, row[heading.end() :])]), False
        elif table:
            yield from ((Text.of([(number, cell)]), True) for cell in re.split(r"(?<!\\)\|", row))
        elif row.strip() and not row.lstrip().startswith("<!--"):
            paragraph.append((number, re.sub(r"^\s*(?:[-*+]|\d+\.|>) ", "", row)))


def _sentences(words: str) -> Iterator[re.Match[str]]:
    return re.finditer(r"""\S.*?(?:(?<!e\.g)(?<!i\.e)(?<!vs)[.!?]["')]*(?=\s+["'(]?[A-Z0-9]|\s*$)|$)""", words)


if __name__ == "__main__":
    main()
