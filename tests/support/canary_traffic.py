"""Steady traffic on one model, and the time at which its answers became a breach."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from app.domain.canary_policy import Policy, exceeds


@dataclass(frozen=True)
class Seen:
    """One answer: request and arrival time (Unix time), version, status and text."""

    began: float
    ended: float
    version: str
    status: int
    text: str


@contextmanager
def steady_traffic(client: Callable[[], httpx.Client], body: dict[str, Any], *, callers: int) -> Iterator[list[Seen]]:
    """Call ``/v1/completions`` from several threads while the block lasts; yield the answers so far."""
    seen: list[Seen] = []
    ended = threading.Event()

    def ask() -> None:
        with client() as caller:
            while not ended.is_set():
                began = time.time()
                answer = caller.post("/v1/completions", json=body)
                text = answer.json()["choices"][0]["text"] if answer.is_success else answer.text
                version = answer.headers.get("x-tenora-adapter", "")
                seen.append(Seen(began, time.time(), version, answer.status_code, text))

    threads = [threading.Thread(target=ask) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def breach_of(seen: Sequence[Seen], candidate: str, since: float) -> float:
    """Return the time from which the answers breach the default limit of empty answers.

    Every answer of the candidate counts as empty.
    """
    bad = usual = 0
    for each in sorted(seen, key=lambda one: one.ended):
        if each.ended < since:
            continue
        bad, usual = bad + (each.version == candidate), usual + (each.version != candidate)
        if exceeds(bad, bad, 0, usual, Policy().max_empty_rate):
            return each.ended
    raise AssertionError(f"{bad} bad answers beside {usual} good ones are no breach")
