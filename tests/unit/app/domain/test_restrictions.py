"""Key restrictions: the names and addresses that a key is limited to."""

import pytest

from app.domain.errors import InvalidRequest
from app.domain.limits.limits import Limits
from app.domain.restrictions import UNRESTRICTED, Restrictions
from app.services.access.restrictions import MOST, changed

BASE = "demo"


def test_what_is_stored_is_what_was_there() -> None:
    for restrictions in (
        UNRESTRICTED,
        Restrictions(adapters=()),
        Restrictions(Limits(tokens_per_day=0), ("prices",), ("10.0.0.0/8", "::1/128")),
    ):
        assert Restrictions.of(restrictions.stored) == restrictions
    assert UNRESTRICTED.stored == {}


@pytest.mark.parametrize(
    ("networks", "host", "allowed"),
    [
        (None, None, True),
        ((), "10.0.0.1", False),
        (("10.0.0.0/8",), "10.255.0.1", True),
        (("10.0.0.0/8",), "11.0.0.1", False),
        (("10.0.0.0/8",), "::ffff:10.0.0.1", True),
        (("10.0.0.0/8", "2001:db8::/32"), "2001:db8::5", True),
        (("2001:db8::/32",), "10.0.0.1", False),
        (("10.0.0.0/8",), None, False),
        (("10.0.0.0/8",), "testclient", False),
        (("0.0.0.0/0",), "", False),
    ],
)
def test_addresses(networks: tuple[str, ...] | None, host: str | None, allowed: bool) -> None:
    assert Restrictions(addresses=networks).allows_address(host) is allowed


def test_names() -> None:
    assert UNRESTRICTED.allows_model("anything")
    assert Restrictions(adapters=("prices",)).allows_model("prices")
    assert not Restrictions(adapters=("prices",)).allows_model("retail/prices")
    assert not Restrictions(adapters=()).allows_model("prices")


def test_a_patch_changes_what_it_names() -> None:
    first = changed(UNRESTRICTED, {"adapters": ["prices", BASE, "retail/prices", "prices"]}, base_name=BASE)
    assert first.adapters == ("prices", BASE, "retail/prices")
    second = changed(first, {"addresses": ["10.0.0.1", "10.0.0.0/8"], "limits": {"tokens_per_day": 5}}, base_name=BASE)
    assert second.addresses == ("10.0.0.1/32", "10.0.0.0/8")
    assert (second.adapters, second.limits) == (first.adapters, Limits(tokens_per_day=5))
    assert changed(second, {}, base_name=BASE) == second
    assert changed(second, dict.fromkeys(("limits", "adapters", "addresses")), base_name=BASE) == UNRESTRICTED


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"adapters": "prices"}, "adapters is 'prices'; it must be a list"),
        ({"adapters": [1]}, "adapters is \\[1\\]; it must be a list"),
        ({"adapters": ["prices:canary"]}, "adapters contains 'prices:canary'.* name without alias"),
        ({"adapters": ["prices:default"]}, "adapters contains 'prices:default'"),
        ({"adapters": ["prices@3"]}, "adapters contains 'prices@3'"),
        ({"adapters": ["Prices"]}, "adapters contains 'Prices'"),
        ({"adapters": [""]}, "adapters contains ''"),
        ({"adapters": ["a"] * (MOST + 1)}, f"adapters has {MOST + 1} items; the limit is {MOST}"),
        ({"addresses": ["10.0.0.1/8"]}, "addresses contains '10.0.0.1/8'.* network without bits"),
        (
            {"addresses": ["example.org"]},
            "addresses contains 'example.org'. Each item must be an address .*, or a network",
        ),
        ({"addresses": {"a": 1}}, "addresses is {'a': 1}; it must be a list"),
        ({"limits": {"tokens": 1}}, "limits has no field 'tokens'"),
    ],
)
def test_what_makes_no_sense_is_named(patch: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        changed(UNRESTRICTED, patch, base_name=BASE)


@pytest.mark.parametrize(
    ("own", "other", "wider"),
    [
        (UNRESTRICTED, UNRESTRICTED, None),
        (UNRESTRICTED, Restrictions(adapters=("a",)), None),
        (Restrictions(adapters=("a", "b")), Restrictions(adapters=("a",)), None),
        (Restrictions(adapters=("a",)), Restrictions(adapters=()), None),
        (Restrictions(adapters=("a",)), Restrictions(adapters=("a", "b")), "adapters"),
        (Restrictions(adapters=()), UNRESTRICTED, "adapters"),
        (Restrictions(addresses=("10.0.0.0/8",)), Restrictions(addresses=("10.1.0.0/16", "10.0.0.7/32")), None),
        (Restrictions(addresses=("10.0.0.0/8",)), Restrictions(addresses=()), None),
        (Restrictions(addresses=("10.0.0.0/8",)), UNRESTRICTED, "addresses"),
        (Restrictions(addresses=("10.0.0.0/8",)), Restrictions(addresses=("10.1.0.0/16", "0.0.0.0/0")), "addresses"),
        (Restrictions(addresses=("10.0.0.0/8",)), Restrictions(addresses=("::/0",)), "addresses"),
        (Restrictions(addresses=("::/0",)), Restrictions(addresses=("10.0.0.0/8",)), "addresses"),
        (Restrictions(Limits(tokens_per_day=7)), Restrictions(Limits(tokens_per_day=7, cost_per_day=1)), None),
        (Restrictions(Limits(tokens_per_day=7)), Restrictions(Limits(tokens_per_day=8)), "limits"),
        (Restrictions(Limits(tokens_per_day=7)), Restrictions(Limits(cost_per_day=1)), "limits"),
    ],
)
def test_what_is_wider_is_named(own: Restrictions, other: Restrictions, wider: str | None) -> None:
    assert other.wider_than(own) == wider
