"""Money as whole numbers, and what tokens cost.

An amount is a number of picos: 10^-12 of the platform's currency. A price per million tokens with six decimals is then
a whole number of picos per token, so costs are products of integers, and nothing is ever rounded: not in a sum, in
JSON or in a database. People read and write amounts as decimals; no float is involved.
"""

import re
from dataclasses import dataclass

#: Picos of one unit of the currency.
UNIT = 10**12
#: Tokens that people name prices for.
PRICED_TOKENS = 10**6

_DECIMALS = 12
_AMOUNT = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,12}))?", re.ASCII)
_PRICE_DECIMALS = 6
_MOST_PRICE = 10**6


class InvalidAmount(ValueError):
    """A text that is no amount; the message says what is allowed."""


def parse_amount(text: object) -> int:
    """Picos of a decimal like ``12.5``.

    Raises:
        InvalidAmount
    """
    match = _AMOUNT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidAmount('a decimal as text, like "12.50", with up to 12 digits before and behind the point')
    return int(match[1]) * UNIT + int((match[2] or "").ljust(_DECIMALS, "0"))


def amount_text(picos: int) -> str:
    """The shortest decimal of an amount: ``12.5``."""
    units, rest = divmod(picos, UNIT)
    return f"{units}.{rest:0{_DECIMALS}d}".rstrip("0").rstrip(".")


def parse_price(text: object) -> int:
    """Picos per token of a price per million tokens like ``0.15``.

    Raises:
        InvalidAmount
    """
    allowed = f'a decimal as text, like "0.15", up to {_MOST_PRICE} with {_PRICE_DECIMALS} decimals'
    try:
        per_token, rest = divmod(parse_amount(text), PRICED_TOKENS)
    except InvalidAmount:
        raise InvalidAmount(allowed) from None
    if rest or per_token > _MOST_PRICE * UNIT // PRICED_TOKENS:
        raise InvalidAmount(allowed)
    return per_token


def price_text(per_token: int) -> str:
    """A price per million tokens."""
    return amount_text(per_token * PRICED_TOKENS)


@dataclass(frozen=True, slots=True)
class Price:
    """What tokens cost, in picos each.

    Attributes:
        cached: of a prompt token that the engine still had.
    """

    prompt: int
    cached: int
    output: int

    def cost(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """Picos of a request; ``cached_tokens`` are among its ``prompt_tokens``."""
        fresh = prompt_tokens - cached_tokens
        return fresh * self.prompt + cached_tokens * self.cached + output_tokens * self.output

    def most(self, prompt_tokens: int, output_tokens: int) -> int:
        """The most that a request of so many tokens can cost, whatever of it the engine still has."""
        return prompt_tokens * max(self.prompt, self.cached) + output_tokens * self.output


#: Of what nobody has set a price for.
FREE = Price(0, 0, 0)
