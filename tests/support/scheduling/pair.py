"""Admission and the reference model in lockstep: same calls, same answers, same state."""

import copy
from math import inf
from typing import Any

import pytest

from app.scheduling import prefill_backlog
from app.scheduling.admission import Admission
from app.scheduling.admission_request import AdmissionRequest, Bounds, Refused
from tests.support.scheduling.model import Model

VERSIONS = range(1, 7)
#: Owner of each version; the last two are shared.
OWNERS = {1: "a", 2: "a", 3: "b", 4: "c"}


class Pair:
    """Admission and model with six versions of three tenants.

    Args:
        bound: maximum number of waiting requests; one less for a single tenant.
    """

    def __init__(
        self,
        *,
        slots: int,
        window: int,
        max_age_s: float,
        credit_s: float,
        step_tokens: float = inf,
        bound: int = 10**6,
    ) -> None:
        self.slots, self.window, self.now, self.count = slots, window, 0.0, 0
        self.bounds = Bounds(requests=bound, tenant_requests=bound - 1, seconds=1e15)
        rules: dict[str, Any] = {"max_age_s": max_age_s, "credit_s": credit_s, "step_tokens": step_tokens}
        self.admission = Admission(slots=slots, window=window, bounds=self.bounds, **rules)
        self.model = Model(slots=slots, window=window, **rules)
        #: Pinned versions, with the requests that keep their slots.
        self.keepers: dict[int, str] = {}

    def waiting(self) -> list[str]:
        return [name for name, request in self.model.requests.items() if not request.running]

    def running(self) -> list[str]:
        """Return the running requests, except those that keep pinned slots."""
        kept = set(self.keepers.values())
        return [name for name, request in self.model.requests.items() if request.running and name not in kept]

    def pinnable(self) -> list[int]:
        """Return the versions that may be pinned; at least one slot stays unpinned, as in the engine."""
        return sorted(self.model.slot_holders - set(self.keepers)) if len(self.keepers) + 1 < self.slots else []

    def enter(
        self, version: int | None, tenant: str, weight: float, prompt: int, output: int, sequences: int = 1
    ) -> None:
        self.count += 1
        owner = tenant if tenant == "" else OWNERS.get(version or 0, tenant)
        prompts = (prompt,) * (sequences // 2 if sequences % 2 == 0 else sequences)
        request = AdmissionRequest(f"r{self.count}", owner, weight, version, prompts, output, sequences)
        self.model.advance_clock(self.now)
        after = copy.deepcopy(self.model)
        expected = after.enter(request, self.now)
        own = sum(self.model.requests[name].parent.tenant == owner for name in self.waiting())
        full = own >= self.bounds.tenant_requests or len(self.waiting()) >= self.bounds.requests
        if owner and request.request_id not in expected and full:
            with pytest.raises(Refused) as refused:
                self.admission.enter(request, self.now)
            assert refused.value.scope == ("tenant" if own >= self.bounds.tenant_requests else "server")
        else:
            self.model = after
            assert list(self.admission.enter(request, self.now)) == expected
        self.check()

    def leave(self, name: str, prompt: int | None = None, output: int | None = None) -> None:
        expected = self.model.leave(name, self.now, prompt, output)
        assert list(self.admission.leave(name, self.now, prompt_tokens=prompt, output_tokens=output)) == expected
        self.check()

    def prefill(self, name: str) -> None:
        assert list(self.admission.prefilled(name, self.now)) == self.model.prefilled(name, self.now)
        self.check()

    def generate(self, name: str, output: int) -> None:
        expected = self.model.generated(name, output, self.now)
        assert list(self.admission.generated(name, output, self.now)) == expected
        self.check()

    def stage(self, version: int) -> None:
        assert list(self.admission.staged(version, self.now)) == self.model.staged(version, self.now)
        self.check()

    def unstage(self, version: int) -> None:
        self.admission.unstaged(version)
        self.model.unstaged(version)
        self.check()

    def pin(self, version: int) -> None:
        self.keepers[version] = self.model.running(version)[0].name
        assert list(self.admission.pin(version, self.now)) == self.model.pin(version, self.now)
        self.check()

    def unpin(self, version: int, *, keeper_first: bool) -> None:
        keeper = self.keepers.pop(version)
        if keeper_first:
            self.leave(keeper)
        self.admission.unpin(version)
        self.model.unpin(version)
        if not keeper_first:
            self.leave(keeper)
        self.check()

    def check(self) -> None:
        """Check that both have the same state, within the bounds."""
        model, seen = self.model, self.admission.snapshot(self.now)
        assert self.admission.waiting == len(self.waiting())
        assert self.admission.running == len(model.requests) - len(self.waiting())
        assert {state.tenant: state.counter for state in seen.tenants} == {
            request.parent.tenant: model.accounts[request.parent.tenant].counter for request in model.requests.values()
        }
        assert {state.version_id for state in seen.versions if state.holds_slot} == model.slot_holders
        assert {state.version_id for state in seen.versions if state.draining} == set(model.draining())
        for state in seen.versions:
            waiting = model.waiting(state.version_id)
            assert (state.running, state.waiting) == (len(model.running(state.version_id)), len(waiting))
            assert state.oldest_wait_s == (self.now - waiting[0].arrived if waiting else 0.0)
        unstaged = [version for version in model.waiting_versions() if version not in model.staged_ids]
        assert list(self.admission.versions_to_stage()) == unstaged
        self._check_bounds()

    def _check_bounds(self) -> None:
        running = [request for request in self.model.requests.values() if request.running]
        assert (
            len({request.parent.version_id for request in running} - {None})
            <= len(self.model.slot_holders)
            <= self.slots
        )
        assert self.model.in_flight() <= 2 * self.window + self.window // 2
        assert sum(request.first for request in running) <= self.window // 2
        assert self.model.prefill_backlog() <= prefill_backlog.PART * prefill_backlog.STEPS * self.model.step_tokens

    def finish(self) -> None:
        """Stage all versions and end all requests; every waiting request is admitted, and no state remains."""
        for version in list(self.keepers):
            self.unpin(version, keeper_first=False)
        for version in VERSIONS:
            self.stage(version)
        while running := self.running():
            self.now += 0.5
            self.leave(running[0])
        assert (self.admission.running, self.admission.waiting) == (0, 0)
        assert self.admission.snapshot(self.now).versions == ()
        assert self.admission.snapshot(self.now).tenants == ()
