"""Workload ``coldload``: the effect of adapter loads on a running stream, and the duration of the loads.

A long stream of the base model runs. Meanwhile adapters are requested that are on the server's disk, but neither in
host memory nor in a slot: first one by one, then several at a time. Afterwards adapters in slots are requested in the
same way. Their effect on the stream is the price of the requests without the loads.

Cold means:

- Tenora: an earlier request fetched the adapter to the disk, and later ones evicted it from host memory. The time
  counts from the request.
- vLLM's own server: it is told to load the adapter's folder, its only notion of cold. The time counts from that call.

The files are dropped from the page cache on both sides.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from rich.console import Console

from app.lab.bench import cold, models, pairs, rivals, timeline
from app.lab.bench.open_loop import Plan, Request, drive
from app.lab.bench.outcome import Outcome
from app.lab.bench.pairs import Prompts, Round, Setup
from app.lab.bench.plots import Panel, Series
from app.lab.bench.report import Metric
from app.lab.bench.servers import Server
from app.lab.bench.timeline import NotMeasured, Script, Served

RANK = 64
SLOTS = 4
#: Adapters that fit into host memory, and the number of other adapters that are requested to evict the cold ones.
HOST_ADAPTERS = 8
INPUT_TOKENS, OUTPUT_TOKENS = 16, 8
STREAM_INPUT_TOKENS = 16
SEED = 2025

#: vLLM's route. Tenora loads the adapter that a request names.
_LOAD_PATH = "/v1/load_lora_adapter"
#: Minimum number of gaps for the median gap of a stream.
_MIN_GAPS = 20
_PREPARE_S = 600.0

STREAM, LOAD, COLD = "stream", "load", "cold"
PARTS = ONE, SOME, WARM = "one by one", "several at a time", "in slots already"

METRICS: Mapping[str, Metric] = {
    "median_gap_ms": Metric("stream's median gap before the load, ms", 1),
    "worst_before_ms": Metric("stream's worst gap before the load, ms", 1),
    "worst_gap_ms": Metric("stream's worst gap during the load, ms", 1),
    "worst_ratio": Metric("worst / median gap", 2),
    "ttft_ms": Metric("time to first token, median, ms", 0),
    "worst_ttft_ms": Metric("time to first token, worst, ms", 0),
    "load_ms": Metric("load time from the server, median, ms", 0),
    "fetch_ms": Metric("part of the load: fetch, mean, ms", 1),
    "stage_ms": Metric("part of the load: stage, mean, ms", 1),
    "wait_ms": Metric("part of the load: wait, mean, ms", 1),
    "copy_ms": Metric("part of the load: copy, mean, ms", 1),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the measurement.

    Attributes:
        rounds: rounds per side, each with a fresh server.
        adapters: number of cold adapters in each part.
        at_once: concurrent requests in the second part.
        rest_s: pause in seconds between dropping the page cache and the stream.
            See docs/decisions/0038-quiet-machine-before-a-benchmark.md.
        settle_s: seconds for which the stream runs alone. Its median gap is from this time.
        watch_s: seconds for all loads of a part, after which the stream is cut off.
        stream_tokens: tokens of each stream, which is followed by another one.
    """

    rounds: int
    adapters: int
    at_once: int
    settle_s: float
    watch_s: float
    rest_s: float = 0.0
    stream_tokens: int = 2000

    @property
    def streams(self) -> int:
        """Number of streams that covers the whole time at one millisecond per token."""
        return 1 + int((self.settle_s + self.watch_s) * 1000 / self.stream_tokens)


FULL = Size(rounds=5, adapters=10, at_once=4, settle_s=6.0, watch_s=30.0, rest_s=10.0)
QUICK = Size(rounds=1, adapters=3, at_once=3, settle_s=3.0, watch_s=12.0)


@dataclass(frozen=True, slots=True)
class Names:
    """Adapter names: those requested cold in each part, and fillers that evict them from host memory."""

    one: Sequence[str]
    some: Sequence[str]
    fillers: Sequence[str]

    @classmethod
    def of(cls, size: Size) -> "Names":
        cold = [f"cold-{number:02d}" for number in range(2 * size.adapters)]
        return cls(cold[: size.adapters], cold[size.adapters :], [f"filler-{n}" for n in range(HOST_ADAPTERS)])

    def all(self) -> list[str]:
        return [*self.one, *self.some, *self.fillers]


def figures(served: Sequence[Served]) -> dict[str, float]:
    """Compute the metrics of one part, in milliseconds.

    Raises:
        NotMeasured: a request failed, or the stream had interruptions.
    """
    streams = [one.sample for one in timeline.of(STREAM, served)]
    timeline.require_answered(one for one in served if one.group != STREAM)
    waits = [_until_first_token(one) for one in _begun(served)]
    if not waits:
        raise NotMeasured("No adapter was requested.")
    requests = timeline.of(COLD, served)
    begin, end = min(start for start, _ in waits), max(one.sample.end or 0.0 for one in requests)
    timeline.require_running(streams, begin, end)
    before = timeline.gaps_before(streams, begin)
    if len(before) < _MIN_GAPS:
        raise NotMeasured(f"The stream had {len(before)} gaps before the first load; at least {_MIN_GAPS} are needed.")
    usual, worst = median(before), max(timeline.gaps_between(streams, begin, end))
    load_times = [one.sample.load_ms for one in requests if one.sample.load_ms is not None]
    ttft = [wait for _, wait in waits]
    return {
        "median_gap_ms": 1000 * usual,
        "worst_before_ms": 1000 * max(before),
        "worst_gap_ms": 1000 * worst,
        "worst_ratio": worst / usual,
        "ttft_ms": 1000 * median(ttft),
        "worst_ttft_ms": 1000 * max(ttft),
        **({"load_ms": median(load_times)} if load_times else {}),
    }


def panels(rounds: Sequence[Round]) -> list[Panel]:
    """Plot the stream's gaps in the last round over the seconds since the first load."""
    last = max(part_round.number for part_round in rounds)
    drawn: list[Panel] = []
    for part in PARTS:
        series: list[Series] = []
        for part_round in rounds:
            if (part_round.number, part_round.part) == (last, part):
                begin = min(start for start, _ in _begun(part_round.served))
                times = [timeline.arrivals(stream.sample) for stream in timeline.of(STREAM, part_round.served)]
                gaps = [(after - begin, 1000 * (after - before)) for each in times for before, after in pairwise(each)]
                series.append(Series(part_round.server, [at for at, _ in gaps], [gap for _, gap in gaps]))
        drawn.append(Panel(part, "s since the first load", "inter-token gap, ms", series, log_y=True, marks=[0]))
    return drawn


def _begun(served: Sequence[Served]) -> Iterator[tuple[float, Served]]:
    """Yield each cold request with its start: the time of the load call before it, or of the request itself."""
    begun: float | None = None
    for request in served:
        if request.group == LOAD:
            begun = request.sample.sent
        elif request.group == COLD:
            yield (request.sample.sent or 0.0) if begun is None else begun, request
            begun = None


def _until_first_token(begun: tuple[float, Served]) -> tuple[float, float]:
    start, request = begun
    if request.sample.first is None:
        raise NotMeasured("A cold request was answered without a token.")
    return start, request.sample.first - start


class Measurement:
    """Measurement of one server. See :data:`app.lab.bench.pairs.Measure`."""

    def __init__(self, setup: Setup, names: Names, size: Size) -> None:
        self._setup, self._names, self._size = setup, names, size
        self._vocabulary = models.vocabulary(setup.base)
        self._prompts = Prompts(self._vocabulary, SEED)

    def __call__(self, server: Server, number: int, folder: Path) -> list[Round]:
        self._prompts = Prompts(self._vocabulary, SEED + number)  # the same on both sides
        self._prepare(server)
        names, size = self._names, self._size
        parts = [(ONE, names.one, 1), (SOME, names.some, size.at_once)]
        rounds = [self._part(server, number, folder, *part) for part in parts]
        # Take the last ones, without those that Tenora evicted in favour of others.
        last = cold.in_slots(server, names.some[-min(SLOTS, size.at_once) :])
        return [*rounds, self._part(server, number, folder, WARM, last, 1)]

    def _prepare(self, server: Server) -> None:
        """Warm the server up, and fill its slots and host memory with adapters other than the cold ones."""
        script = Script()
        # On Tenora this also fetches the cold adapters to its disk. Later ones evict them from host memory.
        names = self._names.all() if server.name == "tenora" else self._names.fillers
        self._ask(script, server, names, at=0.0)
        timeline.require_answered(script.served(drive(Plan(server.port, script.requests, _PREPARE_S)).samples))

    def _part(self, server: Server, number: int, folder: Path, part: str, names: Sequence[str], at_once: int) -> Round:
        size, script = self._size, Script()
        warm = part == WARM
        if not warm:
            cold.drop_from_page_cache([folder, *self._setup.adapters.values()])
            cold.require_cold(server, names)
            time.sleep(size.rest_s)
        stream = self._request(server, None, STREAM_INPUT_TOKENS, size.stream_tokens, 0.0)
        script.chain(STREAM, [stream] * size.streams)
        for first in range(at_once):
            self._ask(script, server, names[first::at_once], at=size.settle_s, load=not warm)
        loads = cold.load_totals(server)
        served = script.served(drive(Plan(server.port, script.requests, size.watch_s)).samples)
        phases = {f"{phase}_ms": value for phase, value in cold.mean_ms(loads, cold.load_totals(server)).items()}
        sent = [one for one in served if one.sample.sent is not None]
        return Round(server.name, number, part, figures(served) | phases, sent)

    def _ask(self, script: Script, server: Server, names: Sequence[str], *, at: float, load: bool = True) -> None:
        """Request these adapters one after another, each after its load call where the server needs one."""
        before: int | None = None
        for name in names:
            if load and server.name == "vllm":
                body = rivals.load_body(name, self._setup.adapters[name])
                call = Request(at, path=_LOAD_PATH, body=body, headers=server.headers, after=before)
                before = script.add(LOAD, call)
            request = self._request(server, name, INPUT_TOKENS, OUTPUT_TOKENS, at, after=before)
            before = script.add(COLD, request)

    def _request(
        self, server: Server, name: str | None, length: int, tokens: int, at: float, after: int | None = None
    ) -> Request:
        return Request(
            at, server.model_for(name), server.headers_for(name), self._prompts.take(length), tokens, after=after
        )


def run(
    home: Path,
    *,
    size: Size,
    console: Console,
    out: Path | None = None,
    base: Path | None = None,
    rank: int = RANK,
    sides: Sequence[str] = pairs.SIDES,
) -> Path:
    """Run the benchmark, print its tables and write a JSON file.

    Args:
        home: folder that keeps models between runs.
        console: console for progress.
        base: folder of another base than the one of hidden size 1024.
        rank: rank of the adapters.

    Returns:
        Path of the JSON file.

    Raises:
        ServerFailed, LoadError, NotMeasured
    """
    home = home.resolve()
    base_folder = models.wide_base(home) if base is None else base.resolve()
    names = Names.of(size)
    folders = models.adapters(home, base_folder, len(names.all()), [rank], SEED)
    setup = Setup(
        home,
        base_folder,
        dict(zip(names.all(), folders, strict=True)),
        SLOTS,
        HOST_ADAPTERS,
        max_rank=rank,
        dtype="auto" if base else models.served_dtype(),
        register=False,
    )
    rounds = pairs.alternate(setup, size.rounds, sides, Measurement(setup, names, size), console)
    details = {"size": asdict(size), "rank": rank, "seed": SEED, "input_tokens": INPUT_TOKENS}
    parts = [(part, METRICS) for part in PARTS]
    return Outcome("coldload", setup, details, parts, rounds).keep(home, out, panels(rounds))
