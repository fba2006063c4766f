"""Part ``cold``: the workload ``coldload`` on this card, adapters one by one and three at once."""

import json
from pathlib import Path
from statistics import median

from rich.console import Console

from app.lab.bench import coldload
from app.lab.bench.card.options import Options, Result
from app.lab.bench.coldload import ONE, SOME, Size

_FULL = Size(rounds=1, adapters=6, at_once=3, settle_s=4.0, watch_s=12.0)
_QUICK = Size(rounds=1, adapters=3, at_once=3, settle_s=1.0, watch_s=3.0)


def run(options: Options) -> Result:
    """Measure both servers; the tables come from the workload.

    Raises:
        ServerFailed, LoadError, NotMeasured
    """
    base = options.the_base()
    path = coldload.run(
        options.home,
        size=_QUICK if options.quick else _FULL,
        console=Console(stderr=True, highlight=False),
        out=options.home / "cold.json",
        base=base,
    )
    figures = json.loads(Path(path).read_text(encoding="utf-8"))
    ttft = {
        (one["server"], one["part"]): one["figures"]["ttft_ms"]
        for one in figures["rounds"]
        if one["part"] in (ONE, SOME)
    }
    ttft_texts = [f"{part}: {ttft['tenora', part]:.0f} ms, vLLM's {ttft['vllm', part]:.0f}" for part in (ONE, SOME)]
    return Result(
        f"first token {'; '.join(ttft_texts)}", {"coldload": figures, "median_ttft_ms": median(ttft.values())}, []
    )
