"""Workload ``starvation``: wait of a cold adapter while a saturated adapter holds the only slot.

Eight clients send requests for the hot adapter in closed loops. One request for a cold adapter arrives in between.
Tenora bounds the cold request's wait by the maximum age T (a setting) plus one drain. A drain is the time that the
running hot requests need to end. vLLM's scheduler has no bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from app.lab.bench import cold, models, outcome, pairs, timeline
from app.lab.bench.open_loop import Plan, Request, drive
from app.lab.bench.outcome import Outcome
from app.lab.bench.pairs import Prompts, Round, Setup
from app.lab.bench.report import Metric
from app.lab.bench.servers import Server
from app.lab.bench.timeline import NotMeasured, Script, Served
from app.settings import QueueSettings

RANK = 8
CLIENTS = 8
HOST_ADAPTERS = 4
INPUT_TOKENS = 64
#: Half-open range of hot answers' lengths. The cold answer has the lower bound.
OUTPUT_TOKENS = (16, 64)
#: Tenora's default ``TENORA_QUEUE__MAX_AGE_S``.
MAX_AGE_S = QueueSettings().max_age_s
SEED = 2026

#: Warm-up at the start of the hot load, in seconds.
_WARM_UP_S = 1.0
#: Planned requests of a client per second, more than any server answers.
_REQUESTS_PER_S = 40
_PREPARE_S = 600.0

HOT, COLD, FILLER = "hot", "cold", "filler"
PART = "one slot"

METRICS: Mapping[str, Metric] = {
    "cold_ttft_s": Metric("cold request's time to first token, s", 2),
    "bound_s": Metric("bound: T + the longest hot request before it, s", 2),
    "of_bound": Metric("of the bound", 2),
    "drain_s": Metric("longest hot request before it, s", 2),
    "hot_requests": Metric("hot requests answered before it", 0),
    "hot_tokens_per_s": Metric("hot output tokens/s, all the time", 0),
    "hot_lost_s": Metric("lost time of the hot load, s", 2),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the measurement.

    Attributes:
        rounds: rounds per side, each with a fresh server.
        seconds: length of the hot load.
        cold_at_s: time of the cold request.
    """

    rounds: int
    seconds: float
    cold_at_s: float = 2.0


FULL = Size(rounds=5, seconds=30.0)
QUICK = Size(rounds=1, seconds=10.0)


def figures(served: Sequence[Served], seconds: float) -> dict[str, float]:
    """Compute the metrics of one round.

    ``hot_lost_s`` is the hot load's lost time between the cold request and the end of its answer. It is that interval
    minus the time in which its hot tokens would have come at the rate of the rest of the run. It is left out if the
    rest is shorter than the interval.

    Raises:
        NotMeasured: a request failed, or the hot load ended early.
    """
    hot, late = timeline.of(HOT, served), timeline.of(COLD, served)
    timeline.require_answered([*hot, *late])
    if len(late) != 1:
        raise NotMeasured(f"{len(late)} cold requests were sent instead of one.")
    sent, first, end = late[0].sample.sent, late[0].sample.first, late[0].sample.end
    if sent is None or first is None or end is None:
        raise NotMeasured("The cold request was answered without a token.")
    if max((one.sample.end or 0.0 for one in hot), default=0.0) < seconds:
        raise NotMeasured(f"The hot load ended before {seconds:g} s.")
    before = [
        (one.sample.end or 0.0) - (one.sample.sent or 0.0)
        for one in hot
        if one.sample.end is not None and one.sample.end <= first
    ]
    if not before:
        raise NotMeasured("No hot request was answered before the cold one.")
    bound = MAX_AGE_S + max(before)
    tokens = timeline.tokens_between(hot, _WARM_UP_S, seconds)[1]
    return {
        "cold_ttft_s": first - sent,
        "bound_s": bound,
        "of_bound": (first - sent) / bound,
        "drain_s": max(before),
        "hot_requests": float(len(before)),
        "hot_tokens_per_s": tokens / (seconds - _WARM_UP_S),
        **_lost(hot, sent, min(end, seconds), seconds),
    }


def _lost(hot: Sequence[Served], begin: float, end: float, seconds: float) -> dict[str, float]:
    inside = timeline.tokens_between(hot, begin, end)[1]
    outside = timeline.tokens_between(hot, _WARM_UP_S, seconds)[1] - inside
    rest = seconds - _WARM_UP_S - (end - begin)
    if rest < end - begin or not outside:
        return {}
    return {"hot_lost_s": (end - begin) - inside / (outside / rest)}


class Measurement:
    """Measurement of one server. See :data:`app.lab.bench.pairs.Measure`."""

    def __init__(self, setup: Setup, size: Size) -> None:
        self._setup, self._size = setup, size
        self._vocabulary = models.vocabulary(setup.base)
        self._prompts = Prompts(self._vocabulary, SEED)

    def __call__(self, server: Server, number: int, _folder: Path) -> list[Round]:
        self._prompts = Prompts(self._vocabulary, SEED + number)  # the same on both sides
        self._prepare(server)
        cold.require_cold(server, [COLD])
        script, size = Script(), self._size
        for _ in range(CLIENTS):
            count = int(_REQUESTS_PER_S * size.seconds)
            script.chain(HOT, (self._request(server, HOT) for _ in range(count)))
        script.add(COLD, self._request(server, COLD, at=size.cold_at_s))
        samples = drive(Plan(server.port, script.requests, stop_s=size.seconds)).samples
        script.require_unfinished(samples)
        sent = [one for one in script.served(samples) if one.sample.sent is not None]
        return [Round(server.name, number, PART, figures(sent, size.seconds), sent)]

    def _prepare(self, server: Server) -> None:
        """Warm up. Request the cold adapter first, then others that evict it from its slot and from host memory."""
        script = Script()
        script.chain("prepare", (self._request(server, name) for name in (COLD, *self._fillers(), HOT)))
        timeline.require_answered(script.served(drive(Plan(server.port, script.requests, _PREPARE_S)).samples))

    def _fillers(self) -> list[str]:
        return [name for name in self._setup.adapters if name.startswith(FILLER)]

    def _request(self, server: Server, name: str, at: float = 0.0) -> Request:
        tokens = OUTPUT_TOKENS[0] if name == COLD else self._prompts.length(OUTPUT_TOKENS)
        prompt = self._prompts.take(INPUT_TOKENS)
        return Request(at, server.model_for(name), server.headers_for(name), prompt, tokens)


def _setup(home: Path, base: Path | None, rank: int) -> Setup:
    base_folder = models.toy_base(home) if base is None else base.resolve()
    names = [HOT, COLD, *(f"{FILLER}-{number}" for number in range(HOST_ADAPTERS))]
    folders = models.adapters(home, base_folder, len(names), [rank], SEED)
    return Setup(
        home,
        base_folder,
        dict(zip(names, folders, strict=True)),
        slots=1,
        host_adapters=HOST_ADAPTERS,
        max_rank=rank,
        dtype="auto" if base else models.served_dtype(),
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
    """Run the benchmark, print its table and write a JSON file.

    Args:
        home: folder that keeps models between runs.
        console: console for progress.
        base: folder of another base than the toy.
        rank: rank of the adapters.

    Returns:
        Path of the JSON file.

    Raises:
        ServerFailed, LoadError, NotMeasured
    """
    setup = _setup(home.resolve(), base, rank)
    rounds = pairs.alternate(setup, size.rounds, sides, Measurement(setup, size), console)
    details = {
        "size": asdict(size),
        "rank": rank,
        "seed": SEED,
        "clients": CLIENTS,
        "input_tokens": INPUT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "max_age_s": MAX_AGE_S,
    }
    shown = {"cold_ttft_s": "", "bound_s": "T + one drain"}
    panel = outcome.by_round(rounds, PART, shown, "cold request against a saturated slot", "TTFT, s")
    return Outcome("starvation", setup, details, [(PART, METRICS)], rounds).keep(home, out, [panel])
