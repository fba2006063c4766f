"""Workload ``batch --interactive``: first tokens of interactive requests, alone and during a batch.

One tenant sends a streamed request every 50 ms, at fixed times, for an adapter that no batch uses. Another tenant's
batch runs from its upload to its output files in the meantime. Requests that are sent in this time count as
``during the batch``.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.lab.bench import batch_sides, open_loop, report
from app.lab.bench.batch_lines import ENDPOINT, Line, write_lines
from app.lab.bench.batch_sides import Key
from app.lab.bench.open_loop import Plan, Request, Run, Sample
from app.lab.bench.pairs import Prompts
from app.lab.bench.servers import Server
from app.lab.bench.timeline import NotMeasured
from tenora_client.batches.requests import FINAL_STATES
from tenora_client.batches.service import ServerBatches
from tenora_client.errors import Refused
from tenora_client.progress import Progress
from tenora_client.transport import Api

TENANT = ADAPTER = "interactive"
INTERVAL_S = 0.05
INPUT_TOKENS, OUTPUT_TOKENS = 32, 16
ALONE, DURING = "alone", "during the batch"

_POLL_S = 0.25
_WARMING = 20


@dataclass(frozen=True, slots=True)
class Stream:
    """Interactive requests of one part.

    Attributes:
        ttft_s: times to the first token in the order of the requests.
        figures: metrics by name.
    """

    ttft_s: Sequence[float]
    figures: Mapping[str, float]


def measure(
    server: Server, lines: Sequence[Line], folder: Path, *, prompts: Prompts, alone_s: float, during_s: float
) -> dict[str, Stream]:
    """Measure the stream alone, then during a batch of these lines.

    Args:
        alone_s: seconds of the stream alone.
        during_s: seconds of the stream with the batch. A batch that is not done by then is cancelled.

    Raises:
        NotMeasured: an interactive request failed, or the batch did.
        LoadError: the generator failed.
    """
    _drive(server, prompts, _WARMING * INTERVAL_S)
    alone = _drive(server, prompts, alone_s)
    key = batch_sides.make_key(server, "batch")
    source = folder / "interactive.jsonl"
    write_lines(source, lines)
    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(_drive, server, prompts, during_s)
        begin, end, figures = _run_batch(server, key, source, during_s)
        run = stream.result()
    return {ALONE: stream_of(alone.samples, {}), DURING: stream_of(sent_between(run, begin, end), figures)}


def sent_between(run: Run, begin: float, end: float) -> list[Sample]:
    """Requests that were sent between two times of ``time.perf_counter``."""
    return [one for one in run.samples if one.sent is not None and begin <= run.started + one.sent <= end]


def stream_of(samples: Sequence[Sample], figures: Mapping[str, float]) -> Stream:
    """Compute the metrics of a part, and add the given ones.

    Raises:
        NotMeasured: a request failed, or none was sent.
    """
    failed = [one.why for one in samples if not one.ok]
    if failed or not samples:
        raise NotMeasured(f"{len(failed)} of {len(samples)} interactive requests failed: {failed[:1]}")
    ttft_s = [one.ttft_s for one in samples if one.ttft_s is not None]
    milliseconds = [1000 * seconds for seconds in ttft_s]
    return Stream(ttft_s, {**report.distribution("ttft", "ms", milliseconds), "requests": len(samples), **figures})


def _drive(server: Server, prompts: Prompts, seconds: float) -> Run:
    model, headers = server.model_for(ADAPTER), server.headers_for(ADAPTER)
    count = max(1, round(seconds / INTERVAL_S))
    requests = [
        Request(number * INTERVAL_S, model, headers, prompts.take(INPUT_TOKENS), OUTPUT_TOKENS)
        for number in range(count)
    ]
    return open_loop.drive(Plan(server.port, requests))


def _run_batch(server: Server, key: Key, source: Path, seconds: float) -> tuple[float, float, dict[str, float]]:
    """Run a batch for at most these seconds; return the times of its begin and end, and its metrics."""
    with Api(server.url, key.text) as api:
        service = ServerBatches(api, on_loss=_ignore)
        begin = time.perf_counter()
        file = service.upload(source, source.name, _ignore_progress)
        batch = service.create({"input_file_id": file.id, "endpoint": ENDPOINT, "completion_window": "24h"})
        while batch.status not in FINAL_STATES and time.perf_counter() - begin < seconds:
            time.sleep(_POLL_S)
            batch = service.show(batch.id)
        end = time.perf_counter()
        if batch.status not in FINAL_STATES:
            with suppress(Refused):  # it may have ended meanwhile
                service.cancel(batch.id)
    counts = batch.request_counts
    if batch.status == "failed" or counts.failed or not counts.completed:
        raise NotMeasured(f"The batch is {batch.status}, and {counts.failed} of its lines failed.")
    return begin, end, {"lines_per_s": counts.completed / (end - begin), "lines_done": float(counts.completed)}


def _ignore(_problem: str) -> None:
    """Ignore lost connections: the next call tells."""


def _ignore_progress(_progress: Progress) -> None:
    """Ignore progress of the upload."""
