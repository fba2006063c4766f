"""Token prices: set by the platform, and cached in memory where requests are counted."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import audit
from app.database import prices as prices_repo
from app.database.session import Database
from app.domain.adapters import ResolvedVersion
from app.domain.clock import Clock, utc_now
from app.domain.errors import InvalidRequest, NotFound
from app.domain.money import FREE, UNIT, InvalidAmount, Price, amount_text, parse_factor, parse_price, price_text
from app.services.common.lookups import adapter_or_404, tenant_or_404

#: Seconds between two reads of the prices. A change takes effect on every server within this time.
EVERY_S = 1.0
#: Prices of models that have no separate price, and of the base model.
DEFAULT, BASE = "default", "base"


class PriceService:
    """Price service: prices of ``default``, ``base`` or ``tenant/adapter``, for every caller. ``actor`` is a key's id.

    Raises (every async method):
        RegistryUnavailable
    """

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock
        self._prices: Mapping[str, Price] = MappingProxyType({})

    def of(self, version: ResolvedVersion | None) -> Price:
        """Return the current price of a version; None for the base model."""
        subject = BASE if version is None else f"adapter:{version.adapter_id}"
        return self._prices.get(subject) or self._prices.get(DEFAULT, FREE)

    async def refresh(self) -> None:
        """Reload all prices. Call it before the first request, then periodically.

        If the registry is unavailable, the previous prices stay.
        """
        async with self._database.read() as connection:
            self._prices = await prices_repo.all_prices(connection)

    async def list(self) -> dict[str, Price]:
        """List prices by model, in order, without deleted adapters."""
        async with self._database.read() as connection:
            names = await prices_repo.adapter_names(connection)
            prices = await prices_repo.all_prices(connection)
        models = {DEFAULT: DEFAULT, BASE: BASE} | {f"adapter:{identity}": name for identity, name in names.items()}
        return {model: prices[subject] for subject, model in models.items() if subject in prices}

    async def set(self, model: str, prices: Mapping[str, object], *, actor: str) -> Price:
        """Set a model's price. Earlier requests keep theirs.

        Args:
            prices: ``prompt``, ``cached`` and ``output`` as decimals per million tokens; ``cached`` may be None, which
                means as ``prompt``. ``batch`` is the factor for lines of batches; None or missing: 1.

        Raises:
            InvalidRequest, NotFound
        """
        prompt, output = _price("prompt", prices["prompt"]), _price("output", prices["output"])
        cached = prompt if prices["cached"] is None else _price("cached", prices["cached"])
        factor = UNIT if prices.get("batch") is None else _parsed("batch", prices["batch"], parse_factor)
        price = Price(prompt, cached, output, factor)
        await self._change(model, price, actor)
        return price

    async def unset(self, model: str, *, actor: str) -> None:
        """Remove a model's price. Adapters and the base model then have the default price; without one they are free.

        Raises:
            NotFound
        """
        await self._change(model, None, actor)

    async def _change(self, model: str, new: Price | None, actor: str) -> None:
        async with self._database.write() as connection:
            tenant, subject = await _subject(connection, model)
            old = (await prices_repo.all_prices(connection)).get(subject)
            if old is None and new is None:
                raise NotFound(f"The model {model!r} has no price.", param="model")
            if old != new:
                await prices_repo.set_price(connection, subject, new)
                action = "price.unset" if new is None else "price.set"
                states = {"before": _shown(old), "after": _shown(new)}
                at = self._clock()
                await audit.record(
                    connection, at=at, actor=actor, action=action, tenant=tenant, subject=model, **states
                )
        await self.refresh()


async def _subject(connection: AsyncConnection, model: str) -> tuple[str | None, str]:
    """Return the owner's slug, and the name under which the price is stored."""
    if model in (DEFAULT, BASE):
        return None, model
    owner, _, name = model.partition("/")
    adapter = await adapter_or_404(connection, await tenant_or_404(connection, owner, lock=True), name)
    return owner, f"adapter:{adapter.id}"


def _price(field: str, text: object) -> int:
    return _parsed(field, text, parse_price)


def _parsed(field: str, text: object, parse: Callable[[object], int]) -> int:
    try:
        return parse(text)
    except InvalidAmount as error:
        raise InvalidRequest(f"{field} is {text!r:.80}; it must be {error}.", param=field) from None


def _shown(price: Price | None) -> dict[str, str] | None:
    if price is None:
        return None
    shown = {name: price_text(getattr(price, name)) for name in ("prompt", "cached", "output")}
    # A factor that was never set is left out of the audit trail.
    return shown | ({} if price.batch == UNIT else {"batch": amount_text(price.batch)})
