"""Generate the synchronous client from the asynchronous one, token by token, as httpcore does.

    python -m deploy.client.sync [--check]

``tenora_client/_async/`` is the source and ``tenora_client/_sync/`` the result. ``--check`` writes nothing and exits
with 1 if a file differs.
"""

import argparse
import io
import subprocess
import sys
import tokenize
from pathlib import Path

from deploy.install import ROOT

PACKAGE = ROOT / "client" / "tenora_client"
SOURCE, TARGET = PACKAGE / "_async", PACKAGE / "_sync"
_HEADER = "# Generated from {source} by `make client-code`. Change that file instead.\n"

_NAMES = {
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "_async": "_sync",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "aiter_lines": "iter_lines",
    "aread": "read",
    "async_closing": "closing",
    "async_run": "run",
    "asynccontextmanager": "contextmanager",
    "asyncio": "time",
}
_KEYWORDS = frozenset({"async", "await"})


def sync_source(name: str, text: str) -> str:
    """Return the synchronous form of one module's source."""
    tokens = [
        (token.type, _renamed(token))
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if not (token.type == tokenize.NAME and token.string in _KEYWORDS)
    ]
    return formatted(_HEADER.format(source=f"_async/{name}") + tokenize.untokenize(tokens), TARGET / name)


def sync_modules() -> dict[Path, str]:
    """Generate every synchronous module, by its path."""
    return {
        TARGET / path.name: sync_source(path.name, path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.glob("*.py"))
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the synchronous client.")
    parser.add_argument("--check", action="store_true", help="only tell which files differ")
    check, modules = parser.parse_args().check, sync_modules()
    current = {path: path.read_text(encoding="utf-8") for path in TARGET.glob("*.py")}
    stale = sorted(path for path in {*modules, *current} if modules.get(path) != current.get(path))
    for path in stale:
        print(path.relative_to(ROOT))  # noqa: T201 - a command line tool
        if not check and path in modules:
            path.write_text(modules[path], encoding="utf-8")
        elif not check:
            path.unlink()
    return 1 if check and stale else 0


def _renamed(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.STRING:
        return _in_text(token.string)
    if token.type != tokenize.NAME:
        return token.string
    if token.string in _NAMES:
        return _NAMES[token.string]
    return token.string.removeprefix("Async")


def _in_text(text: str) -> str:
    """Rename classes in docstrings, which show how they are used."""
    for old, new in (("Asynchronous", "Synchronous"), ("Async", ""), ("async with", "with"), ("async for", "for")):
        text = text.replace(old, new)
    return text.replace("await ", "").replace("_async", "_sync")


def formatted(source: str, target: Path, *, rules: str = "I") -> str:
    """Lay out generated source with ruff, and apply the fixes of some of its rules."""
    ruff, file = str(Path(sys.executable).with_name("ruff")), ["--stdin-filename", str(target), "-"]
    layout = ["format", "--quiet"]
    for command in (layout, ["check", "--select", rules, "--fix", "--quiet"], layout):
        done = subprocess.run([ruff, *command, *file], input=source, text=True, capture_output=True, cwd=ROOT)
        if done.returncode:
            raise ValueError(f"ruff {command[0]} refuses the source generated for {target}: {done.stdout}{done.stderr}")
        source = done.stdout
    return source


if __name__ == "__main__":
    sys.exit(main())
