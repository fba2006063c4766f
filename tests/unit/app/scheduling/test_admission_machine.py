"""Admission compared with the reference model: the same answers for any sequence of events."""

import random
from math import inf
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.support.scheduling.pair import VERSIONS, Pair

ANY_VERSION = st.sampled_from([None, *VERSIONS])
TOKENS = st.integers(0, 50)


class AdmissionMachine(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 3),
        window=st.integers(1, 5) | st.sampled_from([8, 16]),
        max_age_s=st.sampled_from([0.0, 1.0, 2.0]),
        credit_s=st.sampled_from([0.0, 0.7, 100.0]),
        step_tokens=st.sampled_from([inf, 10, 30]),
        bound=st.sampled_from([10**6, 4]),
        staged=st.sets(st.sampled_from(VERSIONS)),
    )
    def start(self, staged: set[int], **bounds: Any) -> None:
        self.pair = Pair(**bounds)
        for version in staged:
            self.pair.stage(version)

    @rule(
        version=ANY_VERSION,
        tenant=st.sampled_from("abc"),
        weight=st.sampled_from([1.0, 2.0]),
        prompt=TOKENS,
        output=TOKENS,
        sequences=st.sampled_from([1, 1, 1, 1, 2, 4, 7]),
    )
    def enter(self, version: int | None, tenant: str, weight: float, prompt: int, output: int, sequences: int) -> None:
        self.pair.enter(version, tenant, weight, prompt, output, sequences)

    @rule(version=ANY_VERSION)
    def enter_without_a_place(self, version: int | None) -> None:
        self.pair.enter(version, "", 1.0, 0, 0, sequences=0)

    @precondition(lambda self: bool(self.pair.running()))
    @rule(data=st.data(), prompt=st.none() | TOKENS, output=st.none() | TOKENS)
    def finish(self, data: st.DataObject, prompt: int | None, output: int | None) -> None:
        self.pair.leave(data.draw(st.sampled_from(self.pair.running())), prompt, output)

    @precondition(lambda self: bool(self.pair.running()))
    @rule(data=st.data())
    def prefill(self, data: st.DataObject) -> None:
        self.pair.prefill(data.draw(st.sampled_from(self.pair.running())))

    @precondition(lambda self: bool(self.pair.running()))
    @rule(data=st.data(), output=TOKENS)
    def generate(self, data: st.DataObject, output: int) -> None:
        self.pair.generate(data.draw(st.sampled_from(self.pair.running())), output)

    @precondition(lambda self: bool(self.pair.waiting()))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.pair.leave(data.draw(st.sampled_from(self.pair.waiting())))

    @rule()
    def leave_unknown(self) -> None:
        self.pair.leave("never")

    @rule(version=st.sampled_from(VERSIONS))
    def stage(self, version: int) -> None:
        self.pair.stage(version)

    @rule(version=st.sampled_from(VERSIONS))
    def unstage(self, version: int) -> None:
        self.pair.unstage(version)

    @precondition(lambda self: bool(self.pair.pinnable()))
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        self.pair.pin(data.draw(st.sampled_from(self.pair.pinnable())))

    @precondition(lambda self: bool(self.pair.keepers))
    @rule(data=st.data(), keeper_first=st.booleans())
    def unpin(self, data: st.DataObject, keeper_first: bool) -> None:
        self.pair.unpin(data.draw(st.sampled_from(sorted(self.pair.keepers))), keeper_first=keeper_first)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.pair.now += seconds

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            self.pair.finish()


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def step(pair: Pair, chance: random.Random) -> None:
    """Apply a random event; most are arrivals and ends of requests."""
    running, waiting, pinnable = pair.running(), pair.waiting(), pair.pinnable()
    version = chance.choice(VERSIONS)
    event = chance.random()
    if event < 0.4:
        sequences = chance.choice([1, 1, 1, 1, 2, 4, 7])
        wanted = chance.choice([None, *VERSIONS])
        pair.enter(wanted, chance.choice("abc"), chance.choice([1.0, 2.0]), chance.randint(0, 50), 20, sequences)
    elif event < 0.42:
        pair.enter(version, "", 1.0, 0, 0, sequences=0)
    elif event < 0.52 and running:
        chance.choice([pair.prefill, lambda name: pair.generate(name, chance.randint(0, 50))])(chance.choice(running))
    elif event < 0.67 and running:
        pair.leave(chance.choice(running), None, chance.choice([None, chance.randint(0, 50)]))
    elif event < 0.72 and waiting:
        pair.leave(chance.choice(waiting))
    elif event < 0.8:
        pair.stage(version)
    elif event < 0.82:
        pair.unstage(version)
    elif event < 0.84 and pinnable:
        pair.pin(chance.choice(pinnable))
    elif event < 0.87 and pair.keepers:
        pair.unpin(chance.choice(sorted(pair.keepers)), keeper_first=chance.random() < 0.5)
    else:
        pair.now += chance.choice([0.1, 0.3, 0.5, 1.0, 2.0, 5.0])


@pytest.mark.parametrize("seed", range(30))
def test_long_walks_agree_with_the_model(seed: int) -> None:
    """Long queues and frequent slot changes, more than hypothesis reaches in a few steps."""
    chance = random.Random(seed)
    pair = Pair(
        slots=chance.randint(1, 3),
        window=chance.choice([*range(1, 7), 8, 16, 24]),
        max_age_s=chance.choice([0.0, 1.0, 2.0, 10.0]),
        credit_s=chance.choice([0.0, 0.7, 100.0]),
        step_tokens=chance.choice([inf, 10, 30]),
    )
    for _ in range(300):
        step(pair, chance)
    pair.finish()
