"""Money as integers, and the cost of tokens.

An amount is a number of picos: 10^-12 of the platform's currency. A price per million tokens with six decimals is then
an integer number of picos per token. Costs are products of integers, so sums, JSON and databases never round. Text uses
decimals; no float is involved.
"""

import re
from dataclasses import dataclass

#: Picos per unit of the currency.
UNIT = 10**12
#: Tokens to which a quoted price refers.
PRICED_TOKENS = 10**6

_DECIMALS = 12
_AMOUNT = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,12}))?", re.ASCII)
_PRICE_DECIMALS = 6
_MOST_PRICE = 10**6
_MOST_FACTOR = 10


class InvalidAmount(ValueError):
    """Text that is not a valid amount; the message says what is allowed."""


def parse_amount(text: object) -> int:
    """Parse a decimal like ``12.5`` into picos.

    Raises:
        InvalidAmount: the value is not a decimal as text within the allowed digits.
    """
    match = _AMOUNT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidAmount('a decimal as text, like "12.50", with up to 12 digits before and after the point')
    return int(match[1]) * UNIT + int((match[2] or "").ljust(_DECIMALS, "0"))


def amount_text(picos: int) -> str:
    """Format an amount in picos as the shortest decimal: ``12.5``."""
    units, rest = divmod(picos, UNIT)
    return f"{units}.{rest:0{_DECIMALS}d}".rstrip("0").rstrip(".")


def parse_price(text: object) -> int:
    """Parse a price per million tokens like ``0.15`` into picos per token.

    Raises:
        InvalidAmount: the value is not a decimal, has too many decimals or is above the maximum.
    """
    allowed = f'a decimal as text, like "0.15", at most {_MOST_PRICE}, with up to {_PRICE_DECIMALS} decimals'
    try:
        per_token, rest = divmod(parse_amount(text), PRICED_TOKENS)
    except InvalidAmount:
        raise InvalidAmount(allowed) from None
    if rest or per_token > _MOST_PRICE * UNIT // PRICED_TOKENS:
        raise InvalidAmount(allowed)
    return per_token


def price_text(per_token: int) -> str:
    """Format picos per token as a price per million tokens."""
    return amount_text(per_token * PRICED_TOKENS)


def parse_factor(text: object) -> int:
    """Parse a factor of a price like ``0.5`` into parts of 10^-12.

    Raises:
        InvalidAmount: the value is not a decimal, has too many decimals or is above the maximum.
    """
    allowed = f'a decimal as text, like "0.5", at most {_MOST_FACTOR}, with up to {_PRICE_DECIMALS} decimals'
    try:
        factor = parse_amount(text)
    except InvalidAmount:
        raise InvalidAmount(allowed) from None
    if factor % (UNIT // 10**_PRICE_DECIMALS) or factor > _MOST_FACTOR * UNIT:
        raise InvalidAmount(allowed)
    return factor


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a token, in picos.

    Attributes:
        cached: price of a prompt token that the engine took from its prefix cache.
        batch: factor of the prices for lines of batches, in parts of 10^-12.
    """

    prompt: int
    cached: int
    output: int
    batch: int = UNIT

    @property
    def of_batch(self) -> "Price":
        """Price of a token in a batch: each price times the factor, rounded down to a whole pico.

        So the price of a million tokens is rounded down by less than 10^-6 of the currency.
        """
        prompt, cached, output = (price * self.batch // UNIT for price in (self.prompt, self.cached, self.output))
        return Price(prompt, cached, output)

    def cost(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """Return the cost of a request in picos; ``prompt_tokens`` includes ``cached_tokens``."""
        fresh = prompt_tokens - cached_tokens
        return fresh * self.prompt + cached_tokens * self.cached + output_tokens * self.output

    def most(self, prompt_tokens: int, output_tokens: int) -> int:
        """Return an upper bound on the cost in picos, for any number of cached tokens."""
        return prompt_tokens * max(self.prompt, self.cached) + output_tokens * self.output


#: Price where none is set.
FREE = Price(0, 0, 0)
