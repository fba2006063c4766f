"""Requests of many sequences: a bound on the steps to a neighbour's first token, and progress of the wide requests."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.scheduling.admission import Admission
from app.scheduling.admission_request import AdmissionRequest, Bounds

#: Places and tokens per step of the engine, and the widest request that the default settings allow.
PLACES, STEP_TOKENS = 128, 2048
WIDEST_PROMPTS, WIDEST_N = 128, 8
#: Maximum number of tokens of a prompt and its answer together.
LONGEST = 2048
STEP_S = 0.02


@dataclass
class Sequence:
    """Sequence in the engine."""

    request: AdmissionRequest
    unprefilled: int
    tokens: int = 0


@dataclass
class Steps:
    """Simulated engine that works in steps, with the default bounds of the queue.

    A step runs the sequences with the smallest tags; ties go to earlier ones. It prefills their prompts within its
    token budget, partly prefilled ones first. A sequence with a prefilled prompt generates one token.

    Attributes:
        lengths: output tokens of each sequence of a request, by request id.
    """

    admission: Admission = field(
        default_factory=lambda: Admission(slots=4, window=PLACES, step_tokens=STEP_TOKENS, bounds=Bounds())
    )
    lengths: dict[str, int] = field(default_factory=dict)
    requests: dict[str, AdmissionRequest] = field(default_factory=dict)
    inside: dict[str, Sequence] = field(default_factory=dict)
    first_tokens: dict[str, int] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    count: int = 0

    @property
    def now(self) -> float:
        return self.count * STEP_S

    def enter(self, request: AdmissionRequest, length: int) -> None:
        self.lengths[request.request_id] = length
        self.requests |= {request.name(number): request for number in range(request.sequences)}
        self.let_in(self.admission.enter(request, self.now))

    def let_in(self, names: Iterable[str]) -> None:
        for name in names:
            request = self.requests[name]
            number = int(name.partition("#")[2] or 0)
            self.inside[name] = Sequence(request, request.prompt_tokens(number))

    def step(self) -> None:
        self.count += 1
        budget = STEP_TOKENS
        running = sorted(self.inside, key=self.admission.start_tag)[:PLACES]
        for name in sorted(running, key=lambda name: not self.is_begun(name)):
            sequence = self.inside[name]
            prefilled = min(budget, sequence.unprefilled)
            sequence.unprefilled -= prefilled
            budget -= prefilled
            if not sequence.unprefilled:
                self.give_token(name, sequence)

    def is_begun(self, name: str) -> bool:
        sequence = self.inside[name]
        number = int(name.partition("#")[2] or 0)
        return 0 < sequence.unprefilled < sequence.request.prompt_tokens(number)

    def give_token(self, name: str, sequence: Sequence) -> None:
        sequence.tokens += 1
        if sequence.tokens == 1:
            self.first_tokens[name] = self.count
            self.let_in(self.admission.prefilled(name, self.now))
        if sequence.tokens.bit_count() == 1:
            self.let_in(self.admission.generated(name, sequence.tokens, self.now))
        if sequence.tokens >= self.lengths[sequence.request.request_id]:
            del self.inside[name]
            self.ended.append(name)
            self.let_in(self.admission.leave(name, self.now, output_tokens=sequence.tokens))

    def give_up(self) -> None:
        """Disconnect all clients; waiting requests leave first, so that none is admitted."""
        for name in [name for name in self.requests if name not in self.inside]:
            self.let_in(self.admission.leave(name, self.now, output_tokens=0))
        for name, sequence in self.inside.items():
            self.admission.leave(name, self.now, output_tokens=sequence.tokens)
        self.inside.clear()


@dataclass(frozen=True)
class Sent:
    """Request of an attacker: arrival step, tenant, width, true length and declared length of its answers."""

    step: int
    tenant: int
    prompts: int
    n: int
    prompt_tokens: int
    length: int
    promised: int


SENT = st.builds(
    Sent,
    step=st.integers(0, 400),
    tenant=st.integers(0, 2),
    prompts=st.sampled_from([1, 4, 16, WIDEST_PROMPTS]),
    n=st.sampled_from([1, 2, WIDEST_N]),
    prompt_tokens=st.sampled_from([1, 20, 500, LONGEST]),
    length=st.sampled_from([1, 3, 50, LONGEST]),
    promised=st.sampled_from([1, 50, LONGEST]),
)


def attacked(sent: list[Sent], tenants: int, *, until: int, gone: int = -1) -> Steps:
    """Run an engine for ``until`` steps with these requests of ``tenants`` tenants; all give up at step ``gone``."""
    steps, numbers = Steps(), itertools.count()
    for at in range(until):
        if at == gone:
            steps.give_up()
        for one in sent:
            if one.step == at:
                name, tenant = f"wide {next(numbers)}", f"attacker {one.tenant % tenants}"
                prompts = (one.prompt_tokens,) * one.prompts
                request = AdmissionRequest(
                    name, tenant, 1.0, None, prompts, max(one.promised, one.length), one.prompts * one.n
                )
                steps.enter(request, one.length)
        steps.step()
    return steps


def steps_to_first_token(steps: Steps, name: str, prompt_tokens: int) -> int:
    began = steps.count
    steps.enter(AdmissionRequest(name, "neighbour", 1.0, None, (prompt_tokens,), 3), 3)
    while name not in steps.first_tokens:
        steps.step()
        assert steps.count - began < 10_000
    return steps.first_tokens[name] - began


@settings(max_examples=60, deadline=None)
@given(
    sent=st.lists(SENT, min_size=1, max_size=12),
    tenants=st.sampled_from([1, 3]),
    at=st.integers(1, 500),
    own=st.sampled_from([1, 20, 500]),
    gone=st.integers(-1, 400),
)
@example(sent=[Sent(0, 0, WIDEST_PROMPTS, WIDEST_N, 1, LONGEST, LONGEST)], tenants=1, at=5, own=20, gone=-1)
@example(sent=[Sent(0, 0, 16, WIDEST_N, 1, LONGEST, LONGEST)], tenants=1, at=400, own=20, gone=-1)
@example(
    sent=[Sent(0, tenant, 8, WIDEST_N, 1, LONGEST, LONGEST) for tenant in (0, 1, 2) * 2],
    tenants=3,
    at=300,
    own=1,
    gone=-1,
)
@example(
    sent=[Sent(0, tenant, 4, WIDEST_N, 1, LONGEST, LONGEST) for tenant in (0, 1, 2) * 4],
    tenants=3,
    at=300,
    own=1,
    gone=-1,
)
@example(
    sent=[Sent(tenant, tenant, WIDEST_PROMPTS, 1, LONGEST, 50, 50) for tenant in (0, 1, 2)],
    tenants=3,
    at=9,
    own=9,
    gone=-1,
)
def test_a_neighbours_first_token_comes_within_k_steps(
    sent: list[Sent], tenants: int, at: int, own: int, gone: int
) -> None:
    """K = ceil(((tenants + 1) x LONGEST + own prompt) / STEP_TOKENS) + 1: 6 steps with three attackers.

    The neighbour has nothing in flight. It is therefore admitted on entry as a first, regardless of counters, while
    firsts have fewer than half of the places. The prefill backlog has room for its prompt, because each attacker may
    have at most a quarter of it. Before it, the engine prefills the prompt in progress and at most one first of each
    attacker. The step after that at the latest prefills the neighbour's whole prompt. Generating sequences cause no
    wait, because firsts take precedence for places.
    """
    steps = attacked(sent, tenants, until=at, gone=gone)
    found = steps_to_first_token(steps, "neighbour", own)
    assert found <= ceil(((tenants + 1) * LONGEST + own) / STEP_TOKENS) + 1


@pytest.mark.parametrize("tenants", [1, 3])
@pytest.mark.parametrize(("requests", "prompts"), [(1, 128), (1, 16), (2, 8), (4, 4)])
def test_a_tenant_that_sends_one_by_one_is_never_starved(requests: int, prompts: int, tenants: int) -> None:
    """Meanwhile the neighbour gets less service than each attacker, which runs a hundred sequences."""
    sent = [Sent(0, number, prompts, WIDEST_N, 1, LONGEST, LONGEST) for number in range(tenants)] * requests
    steps = attacked(sent, tenants, until=10)
    found = [steps_to_first_token(steps, f"neighbour {number}", 20) for number in range(300)]
    assert max(found) <= 2


@pytest.mark.parametrize("tenants", [1, 3])
def test_arrivals_do_not_delay_it_as_a_wide_request_ends(tenants: int) -> None:
    """A wide request settles a large charge when it is given up.

    Tenants that arrive then are lifted to less than those that arrive a second later. The neighbour sends each request
    when the previous one has two tokens to go, and waits no longer than for these.
    """
    steps = attacked([Sent(0, 0, WIDEST_PROMPTS, WIDEST_N, 1, LONGEST, LONGEST)], 1, until=600)
    steps.give_up()
    for number in range(tenants):
        request = AdmissionRequest(f"next {number}", f"next {number}", 1.0, None, (1,) * 128, LONGEST, 1024)
        steps.enter(request, LONGEST)
    found = [steps_to_first_token(steps, f"neighbour {number}", 20) for number in range(300)]
    assert max(found) <= 3


def test_short_answers_before_buy_no_time_for_long_ones() -> None:
    """A tenant's recent answers were short, so its long ones are charged little at first.

    Until they have generated as many tokens as charged, its counter lags behind its service.
    """
    steps = attacked([Sent(step, 0, 1, 1, 1, 1, LONGEST) for step in range(200)], 1, until=201)
    for name in ("long", "longer"):
        steps.enter(AdmissionRequest(name, "attacker 0", 1.0, None, (1,) * 16, LONGEST, 128), LONGEST)
    found = [steps_to_first_token(steps, f"neighbour {number}", 20) for number in range(300)]
    assert max(found) <= 4


def test_a_tenant_ahead_waits_only_until_others_catch_up() -> None:
    """No sequence begins or ends meanwhile: the charges for generated tokens are enough."""
    steps = attacked([Sent(0, 0, 1, 1, 1, 1, 1)], 1, until=5)
    steps_to_first_token(steps, "before", LONGEST)
    steps.enter(AdmissionRequest("long", "attacker 0", 1.0, None, (1,) * 128, LONGEST, 1024), LONGEST)
    assert steps_to_first_token(steps, "neighbour", 20) <= LONGEST // PLACES


def test_a_wide_request_alone_has_all_places_and_ends() -> None:
    """1,024 sequences of 20 tokens on 128 places: the default queue accepts them, and no step is wasted."""
    steps = attacked([Sent(0, 0, WIDEST_PROMPTS, WIDEST_N, 1, 20, 20)], 1, until=1)
    while steps.inside:
        assert len(steps.inside) == min(PLACES, 1024 - len(steps.ended))
        steps.step()
    assert len(steps.ended) == len(set(steps.ended)) == 1024
    assert steps.count == 1024 * 20 / PLACES


def test_wide_requests_of_three_tenants_get_equal_parts() -> None:
    widths = [(tenant, (4, 16, 128)[(tenant + number) % 3]) for number in range(3) for tenant in range(3)]
    steps = attacked([Sent(0, tenant, width, WIDEST_N, 1, 50, 50) for tenant, width in widths], 3, until=600)
    served = [sum(steps.requests[name].tenant == f"attacker {number}" for name in steps.ended) for number in range(3)]
    assert min(served) > 300
    assert max(served) <= 1.1 * min(served)
