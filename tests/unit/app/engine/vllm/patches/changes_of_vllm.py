"""Find every change of vLLM in the source of app/engine/vllm: subclasses, overrides, and writes to its objects."""

import ast
import dis
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import app.engine.vllm

ROOT = Path(app.engine.vllm.__path__[0])
#: Writes to objects that are neither vLLM's nor an attribute of ``self``.
_NOT_VLLMS = {"os", "environ", "environment"}


@dataclass(frozen=True, order=True, slots=True)
class Change:
    """Change of vLLM in one file.

    Attributes:
        name: dotted name of a class that is subclassed or of a method that is overridden; else the bare name of an
            attribute that is written.
    """

    file: str
    line: int
    name: str
    is_subclass: bool


def changes() -> list[Change]:
    return sorted(change for path in ROOT.rglob("*.py") for change in _File(path).changes())


def switches() -> frozenset[str]:
    """Return the names that the code looks up among the patches that apply: ``"name" in patches``."""
    found = set[str]()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
                of = ast.unparse(node.comparators[0])
                if isinstance(node.left, ast.Constant) and (of == "patches" or of.startswith("applied(")):
                    found.add(str(node.left.value))
    return frozenset(found)


def is_known(target: str) -> bool:
    """Return whether vLLM has this module, class, attribute of a class, or attribute that the class sets itself."""
    owner_name, _, name = target.rpartition(".")
    owner = _resolved(owner_name)
    if name.startswith("tenora_"):
        return True  # an addition to a class that exists
    return hasattr(owner, name) or name in getattr(owner, "__annotations__", {}) or name in _written_by(owner)


def names_in(function: Any) -> set[str]:
    """Return the attributes and globals that a function reads, calls or writes, inner functions included."""
    codes = [inspect.unwrap(function).__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {name for code in codes for name in code.co_names}


def _resolved(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        owner, _, last = name.rpartition(".")
        return getattr(_resolved(owner), last)


def _written_by(owner: type) -> set[str]:
    """Return the attributes that a class's methods write, those of its bases and of its subclasses in vLLM included."""
    kinds = [*owner.__mro__, *_subclasses(owner)]
    functions = [value for kind in kinds for value in vars(kind).values() if isinstance(value, FunctionType)]
    return {name for function in functions for name in _written_names(inspect.unwrap(function).__code__)}


def _subclasses(owner: type) -> Iterator[type]:
    for kind in owner.__subclasses__():
        if kind.__module__.startswith("vllm."):
            yield kind
            yield from _subclasses(kind)


def _written_names(code: CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname == "STORE_ATTR":
            yield step.argval


class _File:
    """One file of the wing."""

    def __init__(self, path: Path) -> None:
        self._name, self._tree = str(path.relative_to(ROOT)), ast.parse(path.read_text())
        dotted = ".".join(("app.engine.vllm", *path.relative_to(ROOT).with_suffix("").parts))
        self._module = importlib.import_module(dotted) if "vllm" in self._imports() else None
        self._own_fields = {
            target.id
            for kind in ast.walk(self._tree)
            if isinstance(kind, ast.ClassDef)
            for node in kind.body
            for target in self._written(node)
            if isinstance(target, ast.Name)
        }

    def changes(self) -> Iterator[Change]:
        bases: dict[ast.AST, type] = {}
        for kind in ast.walk(self._tree):
            if isinstance(kind, ast.ClassDef) and (base := self._base(kind)):
                bases |= dict.fromkeys(ast.walk(kind), base)
                yield self._change(kind, f"{base.__module__}.{base.__qualname__}", is_subclass=True)
                for method in kind.body:
                    if isinstance(method, ast.FunctionDef) and method.name in set(dir(base)) - {"__init__"}:
                        dotted = f"{base.__module__}.{base.__qualname__}.{method.name}"
                        yield self._change(method, dotted, is_subclass=True)
        for node in ast.walk(self._tree):
            for written in self._written(node):
                yield from self._write(written, bases.get(node))

    def _base(self, kind: ast.ClassDef) -> type | None:
        """Return the nearest class of vLLM that this class inherits from."""
        if self._module is None:
            return None
        made = getattr(self._module, kind.name)
        return next((one for one in inspect.getmro(made) if one.__module__.startswith("vllm.")), None)

    def _written(self, node: ast.AST) -> list[ast.expr]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"setattr", "delattr"}:
            return [node]
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
        if isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        return [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]

    def _write(self, written: ast.expr, base: type | None) -> Iterator[Change]:
        if isinstance(written, ast.Call):
            literal = isinstance(written.args[1], ast.Constant)
            if literal:
                yield self._change(written, str(written.args[1].value))  # type: ignore[attr-defined]
            return
        if isinstance(written, ast.Subscript) and isinstance(written.value, ast.Attribute):
            if not _is_self(written.value.value):
                yield from self._write(written.value, base)
            return
        if not isinstance(written, ast.Attribute) or ast.unparse(written.value) in _NOT_VLLMS:
            return
        if written.attr.startswith("tenora_") and not isinstance(written.value, ast.Name):
            return  # an addition to an object
        own = written.attr in self._own_fields if not _is_self(written.value) else True
        if _is_self(written.value) and base is not None:
            own = written.attr not in _written_by(base)
        if not own:
            yield self._change(written, written.attr)

    def _change(self, node: Any, name: str, *, is_subclass: bool = False) -> Change:
        return Change(self._name, node.lineno, name, is_subclass)

    def _imports(self) -> set[str]:
        names = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ImportFrom):
                names.add((node.module or "").partition(".")[0])
            elif isinstance(node, ast.Import):
                names |= {one.name.partition(".")[0] for one in node.names}
        return names


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}
