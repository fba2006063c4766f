"""Naive rival: transformers and PEFT behind a completions route, one request at a time.

Usage: ``python -m app.lab.bench.peft_server --base FOLDER --adapters NAMES.json --port N``.

An adapter is loaded at its first request and stays loaded. ``set_adapter`` or ``disable_adapter`` precedes each
request.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import uvicorn
from peft import PeftModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

from app.lab.bench.servers import BASE_NAME


class NaiveServer:
    """Server with one model and one generating thread.

    Args:
        adapters: folder by adapter name.
    """

    def __init__(self, base: Path, adapters: Mapping[str, Path]) -> None:
        self._adapters = adapters
        self._tokenizer = AutoTokenizer.from_pretrained(base)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._base = AutoModelForCausalLM.from_pretrained(base, dtype="auto").to(self._device).eval()
        self._model: Any = None
        self._thread = ThreadPoolExecutor(1)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/completions", self._completions, methods=["POST"]),
            ]
        )

    async def _health(self, _request: Request) -> Response:
        return PlainTextResponse("")

    async def _completions(self, request: Request) -> Response:
        body = await request.json()
        if body["model"] != BASE_NAME and body["model"] not in self._adapters:
            return JSONResponse(
                {"error": {"message": f"The model {body['model']!r} does not exist. Use a name in --adapters."}}, 404
            )
        loop = asyncio.get_running_loop()
        tokens: asyncio.Queue[int | None] = asyncio.Queue()
        streamer = _Streamer(lambda token: loop.call_soon_threadsafe(tokens.put_nowait, token))
        done = loop.run_in_executor(self._thread, self._generate, body, streamer)
        if body.get("stream"):
            return StreamingResponse(self._events(tokens, done), media_type="text/event-stream")
        await done
        output = [token for _ in range(tokens.qsize()) if (token := tokens.get_nowait()) is not None]
        text = self._tokenizer.decode(output)
        return JSONResponse({"choices": [{"index": 0, "text": text}], "usage": {"completion_tokens": len(output)}})

    async def _events(self, tokens: "asyncio.Queue[int | None]", done: "asyncio.Future[None]") -> AsyncIterator[str]:
        count = 0
        try:
            while (token := await tokens.get()) is not None:
                count += 1
                yield _event({"choices": [{"index": 0, "text": self._tokenizer.decode([token])}]})
            # A failed generation raises here, after the end marker that it still puts into the queue.
            await done
        finally:
            # The client may disconnect before the thread starts this request.
            done.cancel()
        yield _event({"choices": [], "usage": {"completion_tokens": count}})
        yield "data: [DONE]\n\n"

    def _generate(self, body: dict[str, Any], streamer: "_Streamer") -> None:
        try:
            prompt = torch.tensor([body["prompt"]], device=self._device)
            with self._chosen(body["model"]), torch.inference_mode():
                (self._model or self._base).generate(
                    input_ids=prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=body["max_tokens"],
                    min_new_tokens=body["max_tokens"] if body.get("ignore_eos") else None,
                    do_sample=False,
                    streamer=streamer,
                )
        finally:
            streamer.close()

    def _chosen(self, name: str) -> Any:
        if name == BASE_NAME:
            return self._model.disable_adapter() if self._model else nullcontext()
        if self._model is None:
            self._model = PeftModel.from_pretrained(self._base, self._adapters[name], adapter_name=name)
        elif name not in self._model.peft_config:
            self._model.load_adapter(self._adapters[name], adapter_name=name)
        self._model.set_adapter(name)
        return nullcontext()


class _Streamer(BaseStreamer):  # type: ignore[misc]  # transformers ships no types
    """Pass each new token on, and None at the end. The prompt, which comes first, is skipped."""

    def __init__(self, put: Any) -> None:
        self._put = put
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        if self._prompt_seen:
            self._put(int(value[0]))
        self._prompt_seen = True

    def end(self) -> None:
        """Do nothing: the caller signals the end with close(), also after a failure."""

    def close(self) -> None:
        self._put(None)


def _event(content: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--adapters", type=Path, required=True, help="JSON file that maps adapter names to folders")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    adapters = {name: Path(path) for name, path in json.loads(options.adapters.read_text(encoding="utf-8")).items()}
    server = NaiveServer(options.base, adapters)
    uvicorn.run(server.app(), host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
