"""What is read of every step: NaN among the logits, and tokens."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from app.engine.outputs import OutputLog, own_id


class Processor:
    """vLLM's, as far as the log sees it."""

    def __init__(self, *external_ids: str) -> None:
        self.request_states = {
            f"{name}-1a2b": SimpleNamespace(external_req_id=name, prompt_len=5) for name in external_ids
        }
        self.seen: list[str] = []
        #: An output with a stop string behind its first token.
        self.cut = SimpleNamespace()
        #: Ids of sequences that end with the next step.
        self.ending: set[str] = set()

    def process_outputs(self, outputs, timestamp, iteration_stats=None):
        self.seen += [output.request_id for output in outputs]
        if self.cut in outputs:
            del self.cut.new_token_ids[1:]
        for request_id in self.ending:
            del self.request_states[request_id]
        self.ending = set()
        return len(outputs), timestamp, iteration_stats


def output(external_id: str, nans: int, tokens: int = 1, cached: int | None = None) -> SimpleNamespace:
    """A step's; of a sequence's first one ``cached`` says how much of the prompt the engine still had."""
    return SimpleNamespace(
        request_id=f"{external_id}-1a2b",
        num_nans_in_logits=nans,
        new_token_ids=list(range(tokens)),
        prefill_stats=None if cached is None else SimpleNamespace(num_cached_tokens=cached),
    )


@pytest.mark.parametrize(
    ("external", "own"),
    [("cmpl-a-b-c-0", "a-b-c"), ("cmpl-x-12", "x"), ("chatcmpl-a-b-0", "a-b-0"), ("chatcmpl-x", "x")],
)
def test_the_servers_own_id_is_found_in_vllms(external: str, own: str) -> None:
    assert own_id(external) == own


def test_nan_in_any_step_of_any_prompt_is_kept() -> None:
    processor, log = Processor("cmpl-bad-0", "cmpl-bad-1", "chatcmpl-good"), OutputLog()
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
    processor, log = Processor(*names), OutputLog()
    log.watch(processor)
    processor.process_outputs([output(name, 1) for name in names], 1.0)
    assert log.was_finite("r0")
    assert log.was_finite("r99")
    assert not log.was_finite("r100")
    assert not log.was_finite("r10099")


def test_tokens_of_all_prompts_and_steps_are_counted_once() -> None:
    processor, log = Processor("cmpl-two-0", "cmpl-two-1", "chatcmpl-other"), OutputLog()
    log.watch(processor)
    for _ in range(3):
        processor.process_outputs(
            [output("cmpl-two-0", 0), output("cmpl-two-1", 0, 2), output("chatcmpl-other", 0)], 1.0
        )
    usage, other = log.take("two"), log.take("other")
    assert usage is not None
    assert other is not None
    assert (usage.prompt_tokens, usage.output_tokens, other.output_tokens) == (10, 9, 3)
    assert log.take("two") is None


def test_of_a_prompt_that_the_engine_had_each_token_is_cached_once() -> None:
    processor, log = Processor("cmpl-n-0", "cmpl-n-1"), OutputLog()
    # Two sequences of one prompt.
    processor.request_states["cmpl-n-0-5e6f"] = processor.request_states["cmpl-n-0-1a2b"]
    log.watch(processor)
    second = SimpleNamespace(**vars(output("", 0, cached=4)) | {"request_id": "cmpl-n-0-5e6f"})
    processor.process_outputs([output("cmpl-n-0", 0, cached=4), second, output("cmpl-n-1", 0, cached=0)], 1.0)
    usage = log.take("n")
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens) == (10, 4, 3)
    assert usage.first_at is not None
    assert abs(usage.first_at - time.monotonic()) < 60


def test_tokens_behind_a_stop_string_and_after_the_end_are_nobodys() -> None:
    processor, log = Processor("cmpl-stop-0"), OutputLog()
    log.watch(processor)
    cut = output("cmpl-stop-0", 0, tokens=3)
    process = processor.process_outputs
    processor.cut = cut
    process([output("cmpl-stop-0", 0)], 1.0)
    processor.ending = {cut.request_id}
    process([cut], 2.0)
    process([output("cmpl-stop-0", 0, tokens=5)], 3.0)
    usage = log.take("stop")
    assert usage is not None
    assert usage.output_tokens == 1 + 1


def test_what_was_on_its_way_or_never_told_when_a_request_was_given_up_is_its_own() -> None:
    processor, log = Processor("cmpl-gone-0", "cmpl-gone-1"), OutputLog()
    log.watch(processor)
    processor.ending = {"cmpl-gone-1-1a2b"}
    processor.process_outputs([output("cmpl-gone-0", 0), output("cmpl-gone-1", 0)], 1.0)
    processor.request_states.clear()
    processor.process_outputs([output("cmpl-gone-0", 0, tokens=8)], 2.0)
    assert log.unended("gone") == ["cmpl-gone-0-1a2b"]
    assert log.unended("unknown") == []
    log.add("gone", 3)
    log.add("unknown", 3)
    usage = log.take("gone")
    assert usage is not None
    assert usage.output_tokens == 2 + 8 + 3
    assert log.take("unknown") is None


def test_outputs_of_a_request_that_was_given_up_leave_nothing() -> None:
    processor, log = Processor("cmpl-gone-0"), OutputLog()
    log.watch(processor)
    processor.process_outputs([output("cmpl-gone-0", 0)], 1.0)
    processor.request_states.clear()
    log.take("gone")
    processor.process_outputs([output("cmpl-gone-0", 0)], 2.0)
    assert log.take("gone") is None


async def test_prompts_are_read_once_each_has_a_token() -> None:
    processor, log = Processor("cmpl-two-0", "cmpl-two-1", "chatcmpl-gone"), OutputLog()
    # Two sequences of one prompt.
    processor.request_states["cmpl-two-0-5e6f"] = processor.request_states["cmpl-two-0-1a2b"]
    log.watch(processor)
    told: list[str] = []
    log.when_read("two", 2, lambda: told.append("two"))
    log.when_read("gone", 1, lambda: told.append("gone"))
    again = SimpleNamespace(**vars(output("", 0)) | {"request_id": "cmpl-two-0-5e6f"})
    processor.process_outputs([output("cmpl-two-0", 0), again], 1.0)
    await asyncio.sleep(0)
    assert told == []
    log.take("gone")
    both = [output("cmpl-two-0", 0), output("cmpl-two-1", 0), output("chatcmpl-gone", 0)]
    processor.process_outputs(both, 2.0)
    assert told == [], "not within vLLM's own loop"
    processor.process_outputs(both, 3.0)
    await asyncio.sleep(0)
    assert told == ["two"]


async def test_the_end_of_every_sequence_is_told_once_whoever_reads() -> None:
    processor, log = Processor("cmpl-two-0", "cmpl-two-1", "chatcmpl-other"), OutputLog()
    log.watch(processor)
    told: list[str] = []
    log.when_ended("two", 2, lambda: told.append("two"))
    log.when_ended("other", 1, lambda: told.append("other"))
    steps = [output("cmpl-two-0", 0), output("cmpl-two-1", 0), output("chatcmpl-other", 0)]
    processor.process_outputs(steps, 1.0)
    processor.ending = {"cmpl-two-0-1a2b"}
    processor.process_outputs(steps, 2.0)
    await asyncio.sleep(0)
    assert told == []
    processor.ending = {"cmpl-two-1-1a2b"}
    processor.process_outputs(steps, 3.0)
    assert told == [], "not within vLLM's own loop"
    await asyncio.sleep(0)
    assert told == ["two"]
    usage = log.take("two")
    assert usage is not None
    assert usage.output_tokens == 5
    # Whose usage is taken has ended otherwise.
    log.take("other")
    processor.ending = {"chatcmpl-other-1a2b"}
    processor.process_outputs(steps, 4.0)
    await asyncio.sleep(0)
    assert told == ["two"]
