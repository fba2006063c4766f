"""``tenora server bench routing``: options, figures, table, plot and file."""

import json

import pytest
from rich.console import Console

from app.lab.bench import routing
from app.lab.bench.routing import METRICS, Measured, Options, ratios, summaries

SMALL = Options(
    replicas=2,
    slots=2,
    adapters=20,
    seconds=2.0,
    rounds=2,
    traces=("zipf", "mmpp"),
    policies=("tenora", "least loaded"),
)


def test_the_file_the_table_and_the_plot_show_every_policy(tmp_path, capsys) -> None:
    path = routing.run(tmp_path, SMALL, out=None, console=Console(quiet=True))
    result = json.loads(path.read_text())
    assert path.name.startswith("routing-")
    assert path.with_suffix(".png").stat().st_size > 10_000
    assert (result["workload"], result["options"]["replicas"], result["machine"]["slots"]) == ("routing", 2, 2)
    assert {"date", "processor", "commit"} <= result.keys()
    rounds = {(one["trace"], one["policy"], one["round"]): one["figures"] for one in result["rounds"]}
    assert len(rounds) == len(result["rounds"]) == 8
    assert all(figures.keys() >= METRICS.keys() for figures in rounds.values())
    # Both policies get the same requests, and each round others.
    requests = {key: figures["requests"] for key, figures in rounds.items()}
    assert requests["zipf", "tenora", 1] == requests["zipf", "least loaded", 1]
    assert requests["zipf", "tenora", 1] != requests["zipf", "tenora", 2]
    shown = capsys.readouterr().out
    for said in ("simulated, zipf", "simulated, mmpp", "copies into slots", "tenora / least loaded: copies"):
        assert said in shown


def measured(policy: str, number: int, copies: float, ttft_p99_s: float) -> Measured:
    return Measured("real", "zipf", policy, number, {"copies": copies, "ttft_p99_s": ttft_p99_s})


def test_ratios_are_medians_of_the_rounds() -> None:
    ours = [measured("tenora", number, copies, 1.0) for number, copies in enumerate((50.0, 60.0, 90.0))]
    theirs = [measured("least loaded", number, 100.0, 2.0) for number in range(3)]
    assert ratios(ours + theirs, "real", "zipf") == (0.6, 0.5)
    assert ratios(ours, "real", "zipf") is None
    assert ratios(theirs, "real", "zipf") is None
    spread = summaries(ours + theirs)["real", "zipf", "tenora"]["copies"]
    assert (spread.low, spread.median, spread.high) == (50, 60, 90)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"--traces has 'weekly'. Choose from zipf"):
        Options(traces=("weekly",))
    with pytest.raises(ValueError, match=r"--policies has 'random'. Choose from tenora"):
        Options(policies=("random",))
