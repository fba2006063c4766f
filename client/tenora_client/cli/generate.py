"""``tenora generate``: send one prompt to the base or an adapter."""

import sys
from typing import Annotated, Any, Optional

import typer

from tenora_client.cli.arguments import tenant_name
from tenora_client.cli.connection import Json, Key, Url, connect_as_tenant
from tenora_client.cli.output import clean_prose, emit_json
from tenora_client.transport import Api, Refused, path_of

#: Tenant of a demo, whose key is used where no key is given.
DemoTenant = Annotated[
    Optional[str],
    typer.Option("--tenant", metavar="TENANT", parser=tenant_name, help="Demo tenant whose key is used without --key"),
]


def generate(
    prompt: Annotated[str, typer.Argument(help="Prompt; - reads it from stdin")],
    model: Annotated[str, typer.Option(help="Model: ADAPTER, ADAPTER:ALIAS or ADAPTER@N (default: the base)")] = "",
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as a user's turn in the base's chat template")
    ] = False,
    stream: Annotated[bool, typer.Option(help="Print the text as it is generated")] = True,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens to generate")] = 128,
    temperature: Annotated[
        Optional[float], typer.Option(min=0, help="Sampling temperature; 0 is greedy (default: the server's)")
    ] = None,
    tenant: DemoTenant = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Generate text. With --json, print the whole answer as the server sent it."""
    text = sys.stdin.read() if prompt == "-" else prompt
    body: dict[str, Any] = {"model": model, "max_tokens": max_tokens}
    body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    body |= {} if temperature is None else {"temperature": temperature}
    path = path_of("v1", "chat", "completions") if chat else path_of("v1", "completions")
    with connect_as_tenant(url, key, tenant=tenant, model=model, as_json=as_json) as api:
        if as_json:
            emit_json(api.call("POST", path, body))
        elif stream:
            _print_stream(api, path, body)
        else:
            sys.stdout.write(clean_prose(text_of(api.call("POST", path, body))) + "\n")


def _print_stream(api: Api, path: str, body: dict[str, Any]) -> None:
    started = False
    try:
        for event in api.stream(path, body | {"stream": True}):
            started = True
            sys.stdout.write(clean_prose(text_of(event)))
            sys.stdout.flush()
    finally:
        # After any end of the stream, the next output starts on a new line.
        sys.stdout.write("\n" if started else "")


def text_of(answer: Any) -> str:
    """Return the text of the first choice of a completion, chat message or chunk. A chunk may have none."""
    try:
        if not answer["choices"]:
            return ""
        choice = answer["choices"][0]
        part = choice.get("message") or choice.get("delta") or choice
        return str(part.get("content") or part.get("text") or "")
    except (KeyError, TypeError, AttributeError):
        raise Refused(200, {"error": {"message": "The answer has no choices."}}, None) from None
