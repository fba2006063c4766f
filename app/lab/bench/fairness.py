"""Workload ``fairness``: isolation between tenants.

There are eight tenants with one adapter each.

1. Open loop: all tenants send equal shares of 80 % of the server's capacity, then one of them sends ten times its
   share. The TTFT of the other seven is compared. The loops run in turns of alternating order, each with a fresh
   measurement of capacity. See docs/decisions/0039-interleaved-rounds-in-benchmarks.md.
2. Closed loop: more clients than the engine runs at a time, so that every tenant always has a backlog. Each tenant has
   different lengths. The weights are equal at first, then 1, 2 and 4.

Served tokens are weighted as in Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): a prompt token
counts 1, an output token 2. Output tokens alone are reported too. vLLM's own server has no tenants.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf
from pathlib import Path
from statistics import median

from rich.console import Console

from app.lab.bench import models, outcome, pairs, timeline
from app.lab.bench.open_loop import Plan, Request, drive
from app.lab.bench.outcome import Outcome
from app.lab.bench.pairs import Prompts, Round, Setup
from app.lab.bench.plots import Panel, Series
from app.lab.bench.report import Metric
from app.lab.bench.servers import Server
from app.lab.bench.shares import jain, off_weights, served_tokens, shares_of
from app.lab.bench.timeline import NotMeasured, Script, Served
from app.lab.bench.workload import SHORTEST, Load, arrivals
from tenora_client.transport import Api, path_of

RANK = 8
TENANTS = tuple(f"tenant-{number}" for number in range(1, 9))
HOSTILE = TENANTS[0]
HOSTILE_TIMES = 10
LOAD = 0.8
#: Half-open range of prompt and answer lengths in the open loop, as in the workload ``adapters``.
LENGTHS = (SHORTEST, 64)
#: Weights of the tenants in their order. Both the groups' totals and each tenant within a group are compared.
WEIGHTS = (1, 2, 4, 1, 2, 4, 1, 2)
SEED = 2027

OPEN = EQUAL, TENFOLD = "equal shares", "one sends ten times its share"
CLOSED = CAPACITY, BACKLOGGED, WEIGHTED = "capacity", "all backlogged", "weights 1, 2, 4"

#: Requests of all clients per second of a capacity measurement, more than any server answers.
_MOST_PER_S = 1000
#: Safety factor: no client completes this multiple of its part of the capacity.
_MARGIN = 5
#: Maximum wait for answers after the last request of an open loop, in seconds.
_DRAIN_S = 300.0
#: Wait for a new weight to apply, in seconds. A server caches a caller with its tenant's weight for up to one second.
_REMEMBERED_S = 1.5

OPEN_METRICS: Mapping[str, Metric] = {
    "requests_per_s": Metric("requests/s sent", 1),
    "others_p50_ttft_s": Metric("TTFT p50 of the other seven, s", 3),
    "others_p99_ttft_s": Metric("TTFT p99 of the other seven, s", 3),
    "p99_ratio": Metric("p99 / p99 with equal shares", 2),
    "others_failed": Metric("unanswered requests of the other seven", 0),
    "hostile_p50_ttft_s": Metric("TTFT p50 of the hostile tenant, s", 2),
    "hostile_failed": Metric("unanswered requests of the hostile tenant", 0),
}
CLOSED_METRICS: Mapping[str, Metric] = {
    "requests_per_s": Metric("requests/s answered", 1),
    "jain": Metric("Jain's index, prompt + 2 x output, by weight", 4),
    "jain_output": Metric("Jain's index, output only, by weight", 4),
    "off_weights": Metric("largest deviation from its weight", 4),
    "off_weights_output": Metric("largest deviation from its weight, output only", 4),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the measurement.

    Attributes:
        rounds: rounds per side, each with a fresh server.
        seconds: length of each part except capacity. For an open loop, the sum over its turns.
        turns: number of turns of the open loops.
        capacity_s: length in seconds of the capacity measurement before each turn.
        clients: clients of each tenant in the closed loops.
        sequences: sequences that the engine runs at a time, fewer than all clients so that some wait.
        slots: number of LoRA slots.
    """

    rounds: int
    seconds: float
    turns: int = 3
    capacity_s: float = 10.0
    clients: int = 12
    sequences: int = 32
    slots: int = len(TENANTS)

    @property
    def warm_up_s(self) -> float:
        """Seconds at the start of a closed loop that its metrics leave out."""
        return min(5.0, self.seconds / 4)


FULL = Size(rounds=5, seconds=60.0)
QUICK = Size(rounds=1, seconds=12.0, turns=1, capacity_s=8.0)


def open_figures(served: Sequence[Served], seconds: float) -> dict[str, float]:
    """Compute the metrics of an open loop. A request without a first token counts as an infinite wait.

    Raises:
        NotMeasured: the hostile tenant or all others sent nothing.
    """
    sent = [one for one in served if one.sample.sent is not None]
    others = [one for one in sent if one.group != HOSTILE]
    hostile = [one for one in sent if one.group == HOSTILE]
    if not others or not hostile:
        raise NotMeasured("A tenant sent nothing.")
    return {
        "requests_per_s": len(sent) / seconds,
        "others_p50_ttft_s": _rank(_ttft(others), 0.5),
        "others_p99_ttft_s": _rank(_ttft(others), 0.99),
        "others_failed": float(sum(not one.sample.ok for one in others)),
        "hostile_p50_ttft_s": _rank(_ttft(hostile), 0.5),
        "hostile_failed": float(sum(not one.sample.ok for one in hostile)),
    }


def _ttft(served: Sequence[Served]) -> list[float]:
    ttfts = (one.sample.ttft_s if one.sample.ok else None for one in served)
    return [inf if value is None else value for value in ttfts]


def _rank(values: Sequence[float], part: float) -> float:
    """Percentile by nearest rank: interpolation is undefined between a number and infinity."""
    return sorted(values)[ceil(part * len(values)) - 1]


def closed_figures(
    served: Sequence[Served], begin: float, end: float, weights: Mapping[str, float]
) -> dict[str, float]:
    """Compute the metrics of a closed loop between two times.

    Raises:
        NotMeasured: a request failed, or a tenant was served nothing.
    """
    timeline.require_answered(served)
    weighted, output = (served_tokens(served, weights, begin, end, output_only=only) for only in (False, True))
    shares = list(weights.values())
    ended = sum(begin <= (one.sample.end or 0.0) < end for one in served)
    return {
        "requests_per_s": ended / (end - begin),
        "jain": jain(weighted, shares),
        "jain_output": jain(output, shares),
        "off_weights": off_weights(weighted, shares),
        "off_weights_output": off_weights(output, shares),
    }


def panels(rounds: Sequence[Round]) -> list[Panel]:
    """Plot the others' TTFT by round, and each tenant's served tokens relative to its share, as medians over rounds."""
    name = "others_p99_ttft_s"
    drawn = [outcome.by_round(rounds, part, {name: ""}, part, "TTFT p99 of the other seven, s") for part in OPEN]
    for part in (BACKLOGGED, WEIGHTED):
        series: list[Series] = []
        for side in pairs.SIDES:
            side_details = [one.details for one in rounds if (one.server, one.part) == (side, part)]
            if side_details:
                values = [median(details[tenant] for details in side_details) for tenant in TENANTS]
                series.append(Series(side, range(1, len(TENANTS) + 1), values))
        drawn.append(Panel(part, "tenant", "served / its share", series))
    return drawn


class Measurement:
    """Measurement of one server. See :data:`app.lab.bench.pairs.Measure`."""

    def __init__(self, setup: Setup, size: Size) -> None:
        self._size, self._vocabulary = size, models.vocabulary(setup.base)

    def __call__(self, server: Server, number: int, _folder: Path) -> list[Round]:
        size, even = self._size, dict.fromkeys(TENANTS, 1.0)
        capacities: list[Round] = []
        served_by_part: dict[str, list[Served]] = {part: [] for part in OPEN}
        for turn in range(size.turns):
            capacities.append(self._closed(server, number, CAPACITY, even, size.capacity_s, _MOST_PER_S, turn=turn))
            share = LOAD * capacities[-1].figures["requests_per_s"] / len(TENANTS)
            for part in OPEN if turn % 2 == 0 else reversed(OPEN):
                hostile = HOSTILE_TIMES * share if part == TENFOLD else share
                rates = dict.fromkeys(TENANTS, share) | {HOSTILE: hostile}
                served_by_part[part] += self._open(server, part, [SEED, number, turn], rates)
        most = _MARGIN * max(one.figures["requests_per_s"] for one in capacities)
        backlogged = self._closed(server, number, BACKLOGGED, even, size.seconds, most, own_lengths=True)
        weights = dict(zip(TENANTS, map(float, WEIGHTS), strict=True))
        _set_weights(server, weights)
        weighted = self._closed(server, number, WEIGHTED, weights, size.seconds, most, own_lengths=True)
        return [*capacities, *self._compared(server, number, served_by_part), backlogged, weighted]

    def _open(self, server: Server, part: str, seed: Sequence[int], rates: Mapping[str, float]) -> list[Served]:
        script, seconds = Script(), self._size.seconds / self._size.turns
        for position, (tenant, rate) in enumerate(rates.items()):
            load = Load(rate, seconds, adapters=1, longest=LENGTHS[1])
            gaps_seed = [*seed, position]  # same arrival times of the others in both parts, different prompts
            part_seed = [*gaps_seed, OPEN.index(part)]
            for arrival in arrivals(load, vocabulary=self._vocabulary, seed=part_seed, gaps_seed=gaps_seed):
                script.add(tenant, _request(server, tenant, arrival.prompt, arrival.output_tokens, arrival.at))
        return outcome.without_gaps(script.served(drive(Plan(server.port, script.requests, _DRAIN_S)).samples))

    def _compared(self, server: Server, number: int, served: Mapping[str, Sequence[Served]]) -> list[Round]:
        equal, tenfold = (open_figures(served[part], self._size.seconds) for part in OPEN)
        tenfold["p99_ratio"] = tenfold["others_p99_ttft_s"] / equal["others_p99_ttft_s"]
        parts = zip(OPEN, (equal, tenfold), strict=True)
        return [Round(server.name, number, part, figures, served[part]) for part, figures in parts]

    def _closed(
        self,
        server: Server,
        number: int,
        part: str,
        weights: Mapping[str, float],
        seconds: float,
        most_per_s: float,
        *,
        turn: int = 0,
        own_lengths: bool = False,
    ) -> Round:
        script, size, prompts = Script(), self._size, Prompts(self._vocabulary, SEED + number + 1000 * turn)
        count = 1 + int(most_per_s * seconds / (size.clients * len(TENANTS)))
        for position, tenant in enumerate(TENANTS):
            prompt, output = _lengths(position) if own_lengths else (LENGTHS, LENGTHS)
            for _ in range(size.clients):
                drawn = ((prompts.take(prompts.length(prompt)), prompts.length(output)) for _ in range(count))
                script.chain(tenant, (_request(server, tenant, *one) for one in drawn))
        samples = drive(Plan(server.port, script.requests, stop_s=seconds)).samples
        script.require_unfinished(samples)
        sent = [one for one in script.served(samples) if one.sample.sent is not None]
        span = min(size.warm_up_s, seconds / 4), seconds
        tokens = served_tokens(sent, weights, *span, output_only=False)
        by_tenant = dict(zip(weights, shares_of(tokens, list(weights.values())), strict=True))
        metrics = closed_figures(sent, *span, weights)
        return Round(server.name, number, part, metrics, outcome.without_gaps(sent), by_tenant)


def _request(server: Server, tenant: str, prompt: list[int], output_tokens: int, at: float = 0.0) -> Request:
    return Request(at, server.model_for(tenant), server.headers_for(tenant), prompt, output_tokens)


def _lengths(position: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Prompt and answer lengths of a backlogged tenant, from long prompts with short answers to the reverse."""
    return (SHORTEST, 96 - 10 * position), (SHORTEST, 24 + 10 * position)


def _set_weights(server: Server, weights: Mapping[str, float]) -> None:
    if not server.admin_headers:
        return
    with Api(server.url, server.admin_headers["authorization"].removeprefix("Bearer ")) as api:
        for tenant, weight in weights.items():
            api.call("PATCH", path_of("admin", "tenants", tenant), {"weight": weight})
    time.sleep(_REMEMBERED_S)


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
        base: folder of another base than the toy.
        rank: rank of the adapters.

    Returns:
        Path of the JSON file.

    Raises:
        ServerFailed, LoadError, NotMeasured
    """
    home = home.resolve()
    base_folder = models.toy_base(home) if base is None else base.resolve()
    folders = models.adapters(home, base_folder, len(TENANTS), [rank], SEED)
    setup = Setup(
        home,
        base_folder,
        dict(zip(TENANTS, folders, strict=True)),
        slots=size.slots,
        host_adapters=len(TENANTS),
        max_rank=rank,
        dtype="auto" if base else models.served_dtype(),
        sequences=size.sequences,
        tenants={tenant: tenant for tenant in TENANTS},
    )
    rounds = pairs.alternate(setup, size.rounds, sides, Measurement(setup, size), console)
    details = {"size": asdict(size), "rank": rank, "seed": SEED, "lengths": LENGTHS, "weights": WEIGHTS, "load": LOAD}
    parts = [(part, OPEN_METRICS) for part in OPEN] + [(part, CLOSED_METRICS) for part in CLOSED]
    return Outcome("fairness", setup, details, parts, rounds).keep(home, out, panels(rounds))
