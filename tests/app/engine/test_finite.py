"""Which requests had NaN among their logits, as vLLM's outputs tell it."""

from types import SimpleNamespace

import pytest

from app.engine.finite import NanLog, own_id


class Processor:
    """vLLM's, as far as the log sees it."""

    def __init__(self, *external_ids: str) -> None:
        self.request_states = {f"{name}-1a2b": SimpleNamespace(external_req_id=name) for name in external_ids}
        self.seen: list[str] = []

    def process_outputs(self, outputs, timestamp, iteration_stats=None):
        self.seen += [output.request_id for output in outputs]
        return len(outputs), timestamp, iteration_stats


def output(external_id: str, nans: int) -> SimpleNamespace:
    return SimpleNamespace(request_id=f"{external_id}-1a2b", num_nans_in_logits=nans)


@pytest.mark.parametrize(
    ("external", "own"),
    [("cmpl-a-b-c-0", "a-b-c"), ("cmpl-x-12", "x"), ("chatcmpl-a-b-0", "a-b-0"), ("chatcmpl-x", "x")],
)
def test_the_servers_own_id_is_found_in_vllms(external: str, own: str) -> None:
    assert own_id(external) == own


def test_nan_in_any_step_of_any_prompt_is_kept() -> None:
    processor, log = Processor("cmpl-bad-0", "cmpl-bad-1", "chatcmpl-good"), NanLog()
    log.watch(processor)
    assert processor.process_outputs([output("cmpl-bad-1", 7), output("chatcmpl-good", 0)], 1.0, iteration_stats=2) == (
        2,
        1.0,
        2,
    )
    processor.process_outputs([output("cmpl-bad-1", 0), output("cmpl-gone-0", 9)], 2.0)
    assert not log.was_finite("bad")
    assert log.was_finite("good")
    assert log.was_finite("gone"), "an output of a request that was aborted"
    assert len(processor.seen) == 4


def test_the_memory_is_bounded() -> None:
    names = [f"cmpl-r{number}-0" for number in range(10_100)]
    processor, log = Processor(*names), NanLog()
    log.watch(processor)
    processor.process_outputs([output(name, 1) for name in names], 1.0)
    assert log.was_finite("r0")
    assert log.was_finite("r99")
    assert not log.was_finite("r100")
    assert not log.was_finite("r10099")
