"""Amounts and prices against Python's decimals: arithmetic without rounding."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.money import (
    FREE,
    PRICED_TOKENS,
    UNIT,
    InvalidAmount,
    Price,
    amount_text,
    parse_amount,
    parse_factor,
    parse_price,
    price_text,
)

PRICES = st.integers(0, UNIT).map(lambda millionths: Decimal(millionths) / 10**6)
TOKENS = st.integers(0, 2**31)


@given(st.decimals(0, 10**12 - 1, places=12))
def test_an_amount_is_exactly_what_was_written(amount):
    with localcontext(prec=60):
        picos = parse_amount(f"{amount:f}")
        assert Decimal(picos) == amount * UNIT
        assert Decimal(amount_text(picos)) == amount
        assert parse_amount(amount_text(picos)) == picos


@given(PRICES, PRICES, PRICES, TOKENS, st.integers(0, 2**31), TOKENS)
def test_a_request_costs_its_tokens_up_to_its_reservation(prompt, cached, output, fresh, had, told):
    price = Price(*(parse_price(f"{one:f}") for one in (prompt, cached, output)))
    cost = price.cost(fresh + had, had, told)
    with localcontext(prec=60):
        exact = (fresh * prompt + had * cached + told * output) / PRICED_TOKENS
        assert Decimal(amount_text(cost)) == exact
    assert cost <= price.most(fresh + had, told)


def test_texts_are_as_people_write_them():
    assert [amount_text(parse_amount(text)) for text in ("0", "12.50", "007", "0.000000000001")] == [
        "0", "12.5", "7", "0.000000000001",
    ]  # fmt: skip
    assert price_text(parse_price("0.01875")) == "0.01875"
    assert FREE.cost(10, 5, 10) == 0


@pytest.mark.parametrize(
    "text", ["", ".5", "1.", "-1", "1e3", "1,5", "٣", " 1", "1.0000000000001", "1" * 13, 1, 1.5, None]
)
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(InvalidAmount, match="a decimal as text"):
        parse_amount(text)
    with pytest.raises(InvalidAmount, match="with up to 6 decimals"):
        parse_price(text)


@pytest.mark.parametrize("text", ["0.0000001", "1000000.000001"])
def test_what_is_no_price_is_refused(text):
    with pytest.raises(InvalidAmount, match="at most 1000000, with up to 6 decimals"):
        parse_price(text)


FACTORS = st.integers(0, 10**7).map(lambda millionths: Decimal(millionths) / 10**6)


@given(PRICES, FACTORS)
def test_a_batch_token_costs_the_price_times_the_factor(price, factor):
    per_token, parts = parse_price(f"{price:f}"), parse_factor(f"{factor:f}")
    of_batch = Price(per_token, per_token, per_token, parts).of_batch
    with localcontext(prec=60):
        exact = per_token * factor
        assert of_batch == Price(int(exact), int(exact), int(exact))
        assert exact - 1 < of_batch.output <= exact
    assert of_batch.of_batch == of_batch


@pytest.mark.parametrize("text", ["", "-1", "10.000001", "0.0000001", "1e-1", None, 0.5])
def test_text_that_is_no_factor(text):
    with pytest.raises(InvalidAmount, match="at most 10"):
        parse_factor(text)
