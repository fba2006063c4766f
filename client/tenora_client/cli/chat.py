"""``tenora chat``: talk to one model, or to two side by side, with a history for each."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

import typer
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from tenora_client.cli.closed_values import did_you_mean
from tenora_client.cli.connection import Key, Url, connect_as_tenant
from tenora_client.cli.generate import DemoTenant, text_of
from tenora_client.cli.next_steps import refusal_sentence
from tenora_client.cli.output import clean, clean_prose, note, report, stdout
from tenora_client.transport import Api, Refused, path_of

_COMMANDS = ("/model", "/system", "/reset", "/help", "/quit")
_HELP = "/model NAME changes the model, /system TEXT sets the system prompt, /reset forgets the chat, /quit ends."
#: Narrowest terminal for two answers side by side.
_SIDE_BY_SIDE = 60


@dataclass
class Conversation:
    """Model with the turns so far."""

    model: str
    system: str = ""
    turns: list[dict[str, str]] = field(default_factory=list)

    def messages(self, prompt: str) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.turns, {"role": "user", "content": prompt}]

    def record(self, prompt: str, answer: str) -> None:
        self.turns += [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


@dataclass
class _Chat:
    api: Api
    conversations: list[Conversation]
    max_tokens: int
    temperature: Optional[float]

    def pieces(self, conversation: Conversation, prompt: str) -> Iterator[str]:
        """Yield the answer as it comes."""
        body: dict[str, Any] = {
            "model": conversation.model,
            "messages": conversation.messages(prompt),
            "max_tokens": self.max_tokens,
            "stream": True,
        }
        body |= {} if self.temperature is None else {"temperature": self.temperature}
        for event in self.api.stream(path_of("v1", "chat", "completions"), body):
            if piece := clean_prose(text_of(event)):
                yield piece


def chat(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="ADAPTER, ADAPTER:ALIAS or ADAPTER@N (default: the base)")
    ] = "",
    compare: Annotated[
        Optional[str], typer.Option(metavar="MODEL", help="Second model, which answers beside it")
    ] = None,
    system: Annotated[str, typer.Option(help="System prompt")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens of an answer")] = 256,
    temperature: Annotated[
        Optional[float], typer.Option(min=0, help="Sampling temperature; 0 is greedy (default: the server's)")
    ] = None,
    tenant: DemoTenant = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Chat with a model, or compare two. Without a terminal, each line of stdin gets one line with the answer."""
    models = [model] if compare is None else [model, compare]
    with connect_as_tenant(url, key, tenant=tenant, model=model, as_json=False) as api:
        talk = _Chat(api, [Conversation(name, system) for name in models], max_tokens, temperature)
        if sys.stdin.isatty():
            _converse(talk)
        else:
            _answer_lines(talk, sys.stdin)


def _answer_lines(talk: _Chat, lines: Iterable[str]) -> None:
    """Answer each line on one line; two models are separated by a tab. The first refusal ends the command."""
    for line in lines:
        prompt = line.strip()
        if not prompt:
            continue
        if prompt.startswith("/"):
            if not _obey(talk, prompt):
                return
            continue
        answers = []
        for conversation in talk.conversations:
            answer = "".join(talk.pieces(conversation, prompt))
            conversation.record(prompt, answer)
            answers.append(clean(answer).strip())
        sys.stdout.write("\t".join(answers) + "\n")
        sys.stdout.flush()


def _converse(talk: _Chat) -> None:
    """Read prompts from the terminal until it ends. A refusal is printed, and the chat goes on."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() editing and a history
    note(_HELP)
    while True:
        try:
            prompt = input("> ").strip()
        except EOFError:
            return
        if prompt.startswith("/"):
            if not _obey(talk, prompt):
                return
        elif prompt:
            _answer(talk, prompt)


def _answer(talk: _Chat, prompt: str) -> None:
    console = stdout()
    side_by_side = len(talk.conversations) > 1 and console.is_terminal and console.width >= _SIDE_BY_SIDE
    try:
        if side_by_side:
            _answer_side_by_side(talk, prompt, console)
        else:
            _answer_in_turn(talk, prompt)
    except Refused as refused:
        report(refusal_sentence(refused))
    except KeyboardInterrupt:
        note("Stopped. The unfinished answer is not part of the chat.")


def _answer_in_turn(talk: _Chat, prompt: str) -> None:
    for conversation in talk.conversations:
        if len(talk.conversations) > 1:
            note(f"{conversation.model or 'base'}:")
        pieces = []
        try:
            for piece in talk.pieces(conversation, prompt):
                pieces.append(piece)
                sys.stdout.write(piece)
                sys.stdout.flush()
        finally:
            sys.stdout.write("\n")
        conversation.record(prompt, "".join(pieces))


def _answer_side_by_side(talk: _Chat, prompt: str, console: Console) -> None:
    """Stream both answers at once, each into its own column."""
    answers = ["" for _ in talk.conversations]
    streams = [talk.pieces(conversation, prompt) for conversation in talk.conversations]
    width = console.width // len(streams) - 1

    def screen() -> Columns:
        return Columns(
            [
                Panel(Text(answer), title=Text(clean(conversation.model or "base")), width=width)
                for conversation, answer in zip(talk.conversations, answers)
            ],
            padding=0,
        )

    open_streams = set(range(len(streams)))
    with Live(screen(), console=console, auto_refresh=False) as live:
        while open_streams:
            for number in sorted(open_streams):
                piece = next(streams[number], None)
                if piece is None:
                    open_streams.discard(number)
                else:
                    answers[number] += piece
            live.update(screen(), refresh=True)
    for conversation, answer in zip(talk.conversations, answers):
        conversation.record(prompt, answer)


def _obey(talk: _Chat, line: str) -> bool:
    """Run a command of the chat, and return whether the chat goes on."""
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    if name == "/quit":
        return False
    if name == "/model":
        talk.conversations[0] = Conversation(rest, talk.conversations[0].system)
        note(f"The model is now {rest or 'the base'}. The chat starts again.")
    elif name in ("/system", "/reset"):
        for conversation in talk.conversations:
            conversation.turns.clear()
            conversation.system = rest if name == "/system" else conversation.system
        note("The system prompt is set. The chat starts again." if name == "/system" else "The chat starts again.")
    elif name == "/help":
        note(_HELP)
    else:
        note(f"There is no command {name}.{did_you_mean(name, _COMMANDS)} {_HELP}")
    return True
