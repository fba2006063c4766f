"""Quotas: parsing and breaches."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import InvalidRequest, QuotaExceeded
from app.domain.quotas import Quota, Usage
from app.services.common.quotas import FIELDS, breaches, check_quota, limits_of
from app.services.common.validation import MOST, patched

NUMBERS = st.integers(0, 100)
QUOTAS = st.builds(Quota, *[st.none() | NUMBERS] * len(FIELDS))
USAGES = st.builds(Usage, *[NUMBERS] * len(FIELDS))


@given(QUOTAS, QUOTAS)
def test_a_patch_sets_lifts_and_leaves(old: Quota, new: Quota) -> None:
    assert patched("quota", old, limits_of(new)) == new
    assert patched("quota", old, {}) == old
    assert patched("quota", old, None) == Quota()
    assert patched("quota", old, {"bytes": 7}) == replace(old, bytes=7)
    assert patched("quota", old, {"bytes": None}) == replace(old, bytes=None)


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ([], "quota"),
        ("10", "quota"),
        ({"adaptors": 1}, "quota"),
        ({"Adapters": 1}, "quota"),
        ({"adapters": -1}, "quota.adapters"),
        ({"adapters": "1"}, "quota.adapters"),
        ({"adapters": True}, "quota.adapters"),
        ({"bytes": 1.0}, "quota.bytes"),
        ({"bytes": MOST + 1}, "quota.bytes"),
        ({"bytes": float("inf")}, "quota.bytes"),
    ],
)
def test_what_is_no_quota_is_refused(raw: Any, param: str) -> None:
    with pytest.raises(InvalidRequest, match=r" is .*; it must be | has no field .*\. Its fields are ") as caught:
        patched("quota", Quota(), raw)
    assert caught.value.param == param


@given(QUOTAS, USAGES, USAGES)
def test_a_breach_is_what_would_be_more_than_is_allowed(quota: Quota, used: Usage, adding: Usage) -> None:
    found = {breach.field: breach for breach in breaches(quota, used, adding)}
    for name in FIELDS:
        allowed, more = getattr(quota, name), getattr(adding, name)
        total = more if name == "rank" else more + getattr(used, name)
        over = allowed is not None and total > allowed and more > 0
        assert (name in found) == over
        if over:
            assert (found[name].found, found[name].allowed) == (total, allowed)


@given(USAGES, USAGES)
def test_without_a_quota_everything_fits(used: Usage, adding: Usage) -> None:
    check_quota(Quota(), used, adding)


@given(QUOTAS, USAGES)
def test_adding_nothing_fits_a_lowered_quota(quota: Quota, used: Usage) -> None:
    assert breaches(quota, used, Usage()) == []


@given(QUOTAS, USAGES, USAGES)
def test_what_fits_may_be_added_up_to_the_last_unit(quota: Quota, used: Usage, adding: Usage) -> None:
    """An addition without a breach never exceeds a limit that was kept before it."""
    kept = all(limit is None or getattr(used, name) <= limit for name, limit in limits_of(quota).items())
    if not kept or breaches(quota, used, adding):
        return
    for name, limit in limits_of(quota).items():
        total = max(used.rank, adding.rank) if name == "rank" else getattr(used, name) + getattr(adding, name)
        assert limit is None or total <= limit


def test_a_refusal_names_every_field_with_both_numbers() -> None:
    quota = Quota(adapters=2, versions=5, bytes=100, rank=8)
    with pytest.raises(QuotaExceeded) as caught:
        check_quota(quota, Usage(adapters=2, versions=4, bytes=60), Usage(adapters=1, versions=1, bytes=41, rank=16))
    assert caught.value.param == "adapters"
    assert re.findall(r"(\w+) would be (\d+) \(limit (\d+)\)", caught.value.message) == [
        ("adapters", "3", "2"),
        ("bytes", "101", "100"),
        ("rank", "16", "8"),
    ]
