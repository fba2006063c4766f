"""Innocent streams of one tenant, read to their ends repeatedly while another tenant attacks."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.support.reference import PeftReference
from tests.support.server import Server

PROMPT = "[INST] What is coffee? [/INST]"
TOKENS = 24
#: The base, and the adapter of the tenant with the same name.
MODELS = ("demo", "pricing")
RESTARTS = "tenora_engine_restarts_total"


class Witness:
    """Tenant that knows the right answers: PEFT's own tokens."""

    def __init__(self, server: Server, key: str, reference: PeftReference) -> None:
        self._server, self._key = server, key
        ids = reference.encode(PROMPT)
        self._expected = {
            model: reference.greedy(ids, None if model == "demo" else model, TOKENS, True) for model in MODELS
        }

    @contextmanager
    def watching(self, *, least: int = 1) -> Iterator[None]:
        """Stream while the block lasts, then until every model was answered this often; check all answers."""
        restarts = self._server.metric(RESTARTS)
        over = threading.Event()
        heard: dict[str, list[list[int]]] = {model: [] for model in MODELS}
        errors: list[Exception] = []
        threads = [
            threading.Thread(target=self._listen, args=(model, heard[model], over, least, errors)) for model in MODELS
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not errors, errors
        for model, answers in heard.items():
            assert len(answers) >= least
            assert all(answer == self._expected[model] for answer in answers), model
        assert self._server.metric(RESTARTS) == restarts

    def _listen(
        self, model: str, heard: list[list[int]], over: threading.Event, least: int, errors: list[Exception]
    ) -> None:
        try:
            with self._server.client(self._key) as client:
                while len(heard) < least or not over.is_set():
                    heard.append(self._streamed(client, model))
        except (httpx.HTTPError, AssertionError) as error:
            errors.append(error)

    def _streamed(self, client: httpx.Client, model: str) -> list[int]:
        body = {
            "model": model,
            "prompt": PROMPT,
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        tokens: list[int] = []
        with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                    tokens += choice["token_ids"] or ()
        return tokens
