"""Form in which a chat template reads the content of messages: one text, or a list of parts.

The rules are those of vLLM's ``_detect_content_format``, so that a gateway renders what vLLM would.
"""

from collections.abc import Iterator
from typing import TypeGuard

from jinja2 import nodes


def reads_parts(tree: nodes.Template) -> bool:
    """Return whether a template reads content as a list of parts.

    It does if one of its loops runs over the content of a message, over a variable ``content``, or over an argument of
    a macro that is called with the content of a message.
    """
    conversations = {"messages"}
    while more := {name for name, value in _assigned(tree) if _reads(value, conversations)} - conversations:
        conversations |= more
    loops = list(tree.find_all(nodes.For))
    turns = {loop.target.name for loop in loops if _named(loop.target) and _reads(loop.iter, conversations)}
    if any(_reads(loop.iter, turns, "content") for loop in loops):
        return True
    in_macros: set[int] = set()
    for macro in tree.find_all(nodes.Macro):
        own = list(macro.find_all(nodes.For))
        in_macros.update(map(id, own))
        contents = _content_arguments(tree, macro, turns)
        if any(_reads(loop.iter, contents) for loop in own if _named(loop.iter)):
            return True
    others = (loop.iter for loop in loops if id(loop) not in in_macros)
    return any(_named(value) and value.name == "content" for value in others)


def _content_arguments(tree: nodes.Template, macro: nodes.Macro, turns: set[str]) -> set[str]:
    """Return the arguments of a macro that some call sets to the content of a message."""
    names = [argument.name for argument in macro.args]
    content_arguments: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if _named(call.node) and call.node.name == macro.name:
            arguments = [*zip(names, call.args, strict=False), *((pair.key, pair.value) for pair in call.kwargs)]
            content_arguments |= {
                name for name, value in arguments if name in names and _reads(value, turns, "content")
            }
    return content_arguments


def _assigned(tree: nodes.Template) -> Iterator[tuple[str, nodes.Node]]:
    for assignment in tree.find_all(nodes.Assign):
        if _named(assignment.target):
            yield assignment.target.name, assignment.node


def _reads(value: nodes.Node, names: set[str], key: str | None = None) -> bool:
    """Return whether an expression is one of these variables, or its ``key``, possibly filtered or sliced."""
    while isinstance(value, nodes.Filter | nodes.Test) or (
        isinstance(value, nodes.Getitem) and isinstance(value.arg, nodes.Slice)
    ):
        if value.node is None:
            return False
        value = value.node
    if key is None:
        return _named(value) and value.name in names
    match value:
        case nodes.Getattr(node=owner, attr=attribute) | nodes.Getitem(node=owner, arg=nodes.Const(value=attribute)):
            return attribute == key and _named(owner) and owner.name in names
    return False


def _named(value: object) -> TypeGuard[nodes.Name]:
    return isinstance(value, nodes.Name)
