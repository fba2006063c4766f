"""Run calls against a live server and record faults of the answers."""

import itertools
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from tests.fuzz.api.calls import prepare, shown
from tests.fuzz.api.judge import Call, complaints
from tests.fuzz.api.world import World
from tests.support.openapi import with_event_schemas
from tests.support.serving import PeftFiles

#: Cases of an operation in each round, and calls of each case, with different names, keys and mutations.
_CASES = 8
_TIMES = 20
#: Calls after which tenants and keys are recreated.
_RENEWED_AFTER = 1000
_TIMEOUT_S = 120
#: The HTTP parser's answer to a malformed request, which no application has seen.
_NOT_HTTP = b"Invalid HTTP request received."


@dataclass
class Finding:
    """A fault, its number of occurrences, and the first call and answer that showed it."""

    first: str
    times: int = 0


@dataclass
class Report:
    """Result of a run.

    Attributes:
        statuses: number of calls by operation and status.
        callers: number of calls by permissions of the key.
        findings: (operation, complaint) -> finding.
        unsendable: cases that HTTP cannot carry; they are not counted as calls.
    """

    statuses: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    callers: Counter[str] = field(default_factory=Counter)
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    unsendable: int = 0
    count: int = 0

    def find(self, label: str, complaint: str, first: str) -> None:
        self.findings.setdefault((label, complaint), Finding(first)).times += 1


@dataclass(frozen=True)
class Target:
    """Server under test.

    Attributes:
        files: two adapters' files that its base can serve.
        home: its folder, whose path no answer may reveal.
    """

    url: str
    admin_key: str
    files: tuple[PeftFiles, PeftFiles]
    home: Path


def fuzz(
    target: Target,
    *,
    calls: int,
    number: int,
    seconds: float = math.inf,
    tick: Callable[[int], None] = lambda _: None,
) -> Report:
    """Make this many calls.

    The same seed makes the same choices, as far as the server's answers are the same.

    Args:
        seconds: time limit, after which no more calls are made.
        tick: called with the number of calls done, after each.
    """
    run = _Run(target, calls, time.monotonic() + seconds, number, tick)
    try:
        for round_number in itertools.count(number):
            run.play(round_number)
    except _Enough:
        pass
    finally:
        run.close()
    return run.report


class _Enough(Exception):
    """Raised to end a run in the middle of a round."""


class _Run:
    def __init__(self, target: Target, calls: int, until: float, number: int, tick: Callable[[int], None]) -> None:
        self._target, self._calls, self._until, self._tick = target, calls, until, tick
        self._rng = random.Random(number)
        self._session = requests.Session()
        self._session.trust_env = False
        document = self._session.get(f"{target.url}/openapi.json", timeout=_TIMEOUT_S).json()
        schema = schemathesis.openapi.from_dict(with_event_schemas(document))
        self._operations = [result.ok() for result in schema.get_all_operations()]
        self._strategies = {
            one.label: st.one_of(
                one.as_strategy(generation_mode=GenerationMode.POSITIVE),
                one.as_strategy(generation_mode=GenerationMode.NEGATIVE),
            )
            for one in self._operations
        }
        self._world = World(target.url, target.admin_key, target.files, list(document["paths"]))
        self._renewed = 0
        self.report = Report()
        for operation in self._operations:
            self.report.statuses[operation.label] = Counter()
        self._world.renew()

    def close(self) -> None:
        self._world.close()
        self._session.close()

    def play(self, number: int) -> None:
        """Run some cases of every operation in a random order, each with several callers."""
        each = max(2, min(_CASES, self._calls // (_TIMES * len(self._operations))))
        cases = [case for one in self._operations for case in _cases(self._strategies[one.label], number, each)]
        for _ in range(_TIMES):
            self._rng.shuffle(cases)
            for case in cases:
                self._call(case)

    def _call(self, case: Case) -> None:
        if self.report.count - self._renewed >= _RENEWED_AFTER:
            self._renewed = self.report.count
            self._world.renew()
        try:
            caller, request, described = prepare(_copy(case), self._world, self._rng, self._session, self._target.url)
            if self._world.is_kept(str(request.url)):
                return
            answer = self._session.send(request, stream=True, timeout=_TIMEOUT_S, allow_redirects=False)
        except (requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL, UnicodeError):
            self.report.unsendable += 1
            return
        except (requests.exceptions.Timeout, requests.exceptions.ConnectionError) as error:
            self.report.find(case.operation.label, f"no answer: {type(error).__name__}", shown(request, caller))
            return
        with answer:
            _read(answer, case)
            if answer.content == _NOT_HTTP:
                self.report.unsendable += 1
                return
            self._note(Call(case, caller, request, answer, described, str(self._target.home)))

    def _note(self, call: Call) -> None:
        report, label = self.report, call.case.operation.label
        report.count += 1
        report.statuses[label][call.answer.status_code] += 1
        report.callers[call.caller] += 1
        self._world.learn(str(call.request.path_url).partition("?")[0], call.answer)
        for complaint in complaints(call):
            first = f"{shown(call.request, call.caller)}\n    -> {call.answer.status_code} {call.answer.text[:400]}"
            report.find(label, complaint, first)
        self._tick(report.count)
        if report.count == self._calls or time.monotonic() > self._until:
            raise _Enough


def _cases(strategy: st.SearchStrategy[Case], number: int, count: int) -> list[Case]:
    """Draw all cases before any is sent, so that they do not depend on the server's answers."""
    drawn: list[Case] = []

    @seed(number)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def draw(case: Case) -> None:
        drawn.append(case)

    draw()
    return drawn


def _copy(case: Case) -> Case:
    return case.operation.Case(
        method=case.method,
        path_parameters=dict(case.path_parameters),
        headers=dict(case.headers),
        cookies=dict(case.cookies),
        query=dict(case.query),
        body=case.body,
        media_type=case.media_type,
    )


def _read(answer: requests.Response, case: Case) -> None:
    """Read the whole answer; of an endless event feed, only the beginning."""
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/event-stream") and case.path.endswith("/events"):
        answer._content = next(answer.raw.stream(), b"")
        answer._content_consumed = True
    else:
        _ = answer.content
