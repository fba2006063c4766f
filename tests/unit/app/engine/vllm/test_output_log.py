"""Output log: NaN in logits and token counts of every step."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from app.engine.vllm.output_log import Follower, OutputLog, Place, RequestUsage, SequenceUsage, own_id, place_of


class Processor:
    """Fake of vLLM's output processor, with the parts that the log uses."""

    def __init__(self, *external_ids: str) -> None:
        self.request_states = {
            f"{name}-1a2b": SimpleNamespace(external_req_id=name, prompt_len=5) for name in external_ids
        }
        self.seen: list[str] = []
        #: Output with a stop string after its first token.
        self.cut = SimpleNamespace()
        #: Ids of the sequences that end with the next step.
        self.ending: set[str] = set()

    def process_outputs(self, outputs, timestamp, iteration_stats=None):
        self.seen += [output.request_id for output in outputs]
        if self.cut in outputs:
            del self.cut.new_token_ids[1:]
        for request_id in self.ending:
            del self.request_states[request_id]
        self.ending = set()
        return len(outputs), timestamp, iteration_stats


def watched(processor: Processor, *request_ids: str, follower: Follower | None = None) -> list[RequestUsage]:
    """Begin requests in a log that watches the processor, and return their usages."""
    log = OutputLog()
    log.watch(processor)
    usages = [RequestUsage(follower) for _ in request_ids]
    for request_id, usage in zip(request_ids, usages, strict=True):
        log.begin(request_id, usage)
    return usages


def output(external_id: str, nans: int, tokens: int = 1, cached: int | None = None) -> SimpleNamespace:
    """Build an output of a step; a sequence's first output has ``cached``, the number of cached prompt tokens."""
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
    processor = Processor("cmpl-bad-0", "cmpl-bad-1", "chatcmpl-good")
    bad, good, gone = watched(processor, "bad", "good", "gone")
    assert processor.process_outputs([output("cmpl-bad-1", 7), output("chatcmpl-good", 0)], 1.0, iteration_stats=2) == (
        2,
        1.0,
        2,
    )
    processor.process_outputs([output("cmpl-bad-1", 0), output("cmpl-gone-0", 9)], 2.0)
    assert (bad.finite, good.finite) == (False, True)
    assert gone.finite, "an output of a request that was aborted"
    assert len(processor.seen) == 4


def test_tokens_of_all_prompts_and_steps_are_counted_once() -> None:
    processor = Processor("cmpl-two-0", "cmpl-two-1", "chatcmpl-other", "chatcmpl-unknown")
    two, other = watched(processor, "two", "other")
    for _ in range(3):
        outputs = [output("cmpl-two-0", 0), output("cmpl-two-1", 0, 2), output("chatcmpl-other", 0)]
        processor.process_outputs([*outputs, output("chatcmpl-unknown", 1)], 1.0)
    assert (two.prompt_tokens, two.output_tokens, other.output_tokens) == (10, 9, 3)


def test_each_token_of_a_known_prompt_is_cached_once() -> None:
    processor = Processor("cmpl-n-0", "cmpl-n-1")
    # Two sequences of one prompt.
    processor.request_states["cmpl-n-0-5e6f"] = processor.request_states["cmpl-n-0-1a2b"]
    (usage,) = watched(processor, "n")
    second = SimpleNamespace(**vars(output("", 0, cached=4)) | {"request_id": "cmpl-n-0-5e6f"})
    processor.process_outputs([output("cmpl-n-0", 0, cached=4), second, output("cmpl-n-1", 0, cached=0)], 1.0)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens) == (10, 4, 3)
    assert usage.first_at is not None
    assert abs(usage.first_at - time.monotonic()) < 60


def test_tokens_after_a_stop_or_end_belong_to_no_choice() -> None:
    processor = Processor("cmpl-stop-0")
    (usage,) = watched(processor, "stop")
    cut = output("cmpl-stop-0", 0, tokens=3)
    process = processor.process_outputs
    processor.cut = cut
    process([output("cmpl-stop-0", 0)], 1.0)
    processor.ending = {cut.request_id}
    process([cut], 2.0)
    process([output("cmpl-stop-0", 0, tokens=5)], 3.0)
    assert usage.output_tokens == 1 + 1


def test_outputs_on_their_way_at_an_abort_are_its_own() -> None:
    processor, log, usage = Processor("cmpl-gone-0", "cmpl-gone-1"), OutputLog(), RequestUsage()
    log.watch(processor)
    log.begin("gone", usage)
    processor.ending = {"cmpl-gone-1-1a2b"}
    processor.process_outputs([output("cmpl-gone-0", 0), output("cmpl-gone-1", 0)], 1.0)
    processor.request_states.clear()
    processor.process_outputs([output("cmpl-gone-0", 0, tokens=8)], 2.0)
    assert usage.output_tokens == 2 + 8


def test_nothing_is_counted_after_the_end_of_a_request() -> None:
    processor, log, usage = Processor("cmpl-gone-0"), OutputLog(), RequestUsage()
    log.watch(processor)
    log.begin("gone", usage)
    processor.process_outputs([output("cmpl-gone-0", 0)], 1.0)
    log.end("gone")
    log.end("gone")
    processor.process_outputs([output("cmpl-gone-0", 1)], 2.0)
    processor.request_states.clear()
    processor.process_outputs([output("cmpl-gone-0", 1)], 3.0)
    assert (usage.output_tokens, usage.finite) == (1, True)


class Heard:
    """Follower that records its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def began(self, place: Place) -> None:
        self.told.append(("began", place))

    def grew(self, place: Place, output_tokens: int) -> None:
        self.told.append(("grew", place, output_tokens))

    def ended(self, sequence: SequenceUsage) -> None:
        self.told.append(("ended", sequence.place, sequence.prompt_tokens, sequence.output_tokens))

    async def all(self) -> list[tuple[object, ...]]:
        await asyncio.sleep(0)
        told, self.told = self.told, []
        return told


def choices(processor: Processor, external_id: str, count: int) -> list[str]:
    """Replace a prompt's sequence with several choices, named as by vLLM, and return their names."""
    state = processor.request_states.pop(f"{external_id}-1a2b")
    names = [f"{number}_{external_id}-1a2b" for number in range(count)]
    processor.request_states |= dict.fromkeys(names, state)
    return names


def step(*names: str, tokens: int = 1) -> list[SimpleNamespace]:
    return [SimpleNamespace(**vars(output("", 0, tokens)) | {"request_id": name}) for name in names]


async def test_a_follower_gets_first_tokens_and_ends_once() -> None:
    processor, heard = Processor("cmpl-two-0", "cmpl-two-1", "chatcmpl-other"), Heard()
    first, second = choices(processor, "cmpl-two-1", 2)
    (usage,) = watched(processor, "two", follower=heard)
    processor.process_outputs(step(first, "cmpl-two-0-1a2b", "chatcmpl-other-1a2b"), 1.0)
    assert heard.told == [], "not within vLLM's own loop"
    assert await heard.all() == [("began", (1, 0)), ("began", (0, 0))]
    processor.ending = {first}
    processor.process_outputs(step(second, first, tokens=2), 2.0)
    assert await heard.all() == [("began", (1, 1)), ("grew", (1, 1), 2), ("ended", (1, 0), 5, 3)]
    processor.ending = {second, "cmpl-two-0-1a2b"}
    processor.process_outputs(step(second, "cmpl-two-0-1a2b"), 3.0)
    assert await heard.all() == [("ended", (1, 1), 0, 3), ("ended", (0, 0), 5, 2)]
    assert (usage.prompt_tokens, usage.output_tokens) == (10, 8)


async def test_a_follower_is_told_of_tokens_whenever_they_have_doubled() -> None:
    processor, heard = Processor("chatcmpl-long"), Heard()
    watched(processor, "long", follower=heard)
    told = []
    for _ in range(70):
        processor.process_outputs(step("chatcmpl-long-1a2b"), 1.0)
        told += await heard.all()
    assert told == [("began", (0, 0)), *(("grew", (0, 0), tokens) for tokens in (2, 4, 8, 16, 32, 64))]


async def test_a_request_that_has_ended_is_followed_no_more() -> None:
    processor, log, heard = Processor("chatcmpl-gone"), OutputLog(), Heard()
    log.watch(processor)
    log.begin("gone", RequestUsage(heard))
    processor.process_outputs(step("chatcmpl-gone-1a2b"), 1.0)
    assert await heard.all() == [("began", (0, 0))]
    log.end("gone")
    processor.ending = {"chatcmpl-gone-1a2b"}
    processor.process_outputs(step("chatcmpl-gone-1a2b"), 2.0)
    assert await heard.all() == []


@pytest.mark.parametrize(
    ("external", "name", "place"),
    [
        ("cmpl-r-0", "cmpl-r-0-1a2b", (0, 0)),
        ("cmpl-r_7-12", "cmpl-r_7-12-1a2b", (12, 0)),
        ("cmpl-r-12", "3_cmpl-r-12-1a2b", (12, 3)),
        ("chatcmpl-7_r-5", "chatcmpl-7_r-5-1a2b", (0, 0)),
        ("chatcmpl-r", "10_chatcmpl-r-1a2b", (0, 10)),
    ],
)
def test_which_sequence_it_is_is_found_in_vllms_names(external: str, name: str, place: Place) -> None:
    assert place_of(external, name) == place
