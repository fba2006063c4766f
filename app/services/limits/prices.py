"""What tokens cost: set by the platform, known by heart where requests are counted."""

from collections.abc import Mapping
from types import MappingProxyType

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import audit
from app.database import prices as prices_repo
from app.database.cached_query import CachedQuery
from app.database.session import Database
from app.domain.adapters import ResolvedVersion
from app.domain.clock import Clock, utc_now
from app.domain.errors import InvalidRequest, NotFound
from app.domain.money import FREE, InvalidAmount, Price, parse_price, price_text
from app.services.common.lookups import adapter_or_404, tenant_or_404

#: Seconds between two times that prices are read again: a change holds on every server after that.
EVERY_S = 1.0
#: Of whatever has no price of its own, and of the base model.
DEFAULT, BASE = "default", "base"


class PriceService:
    """Prices by model: ``default``, ``base``, or ``tenant/adapter``, whoever calls it; ``actor`` is a key's id."""

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock
        self._all = CachedQuery(database, prices_repo.all_prices)
        self._known: Mapping[str, Price] = MappingProxyType({})

    def of(self, version: ResolvedVersion | None) -> Price:
        """What a request of this version costs now; None: of the base model."""
        subject = BASE if version is None else f"adapter:{version.adapter_id}"
        return self._known.get(subject) or self._known.get(DEFAULT, FREE)

    async def refresh(self) -> None:
        """Read all of them; before the first request, and again and again.

        Raises:
            RegistryUnavailable: those that were known stay.
        """
        self._known = await self._all()

    async def list(self) -> dict[str, Price]:
        """By model, in order; not those of deleted adapters.

        Raises:
            RegistryUnavailable
        """
        async with self._database.read() as connection:
            names = await prices_repo.adapter_names(connection)
            found = await prices_repo.all_prices(connection)
        models = {DEFAULT: DEFAULT, BASE: BASE} | {f"adapter:{identity}": name for identity, name in names.items()}
        return {model: found[subject] for subject, model in models.items() if subject in found}

    async def set(self, model: str, prices: Mapping[str, object], *, actor: str) -> Price:
        """Give a model a price; requests that came before keep theirs.

        Args:
            prices: ``prompt``, ``cached`` and ``output``, decimals per million tokens; ``cached`` None: as ``prompt``.

        Raises:
            InvalidRequest, NotFound, RegistryUnavailable
        """
        prompt, output = _price("prompt", prices["prompt"]), _price("output", prices["output"])
        cached = prompt if prices["cached"] is None else _price("cached", prices["cached"])
        price = Price(prompt, cached, output)
        await self._change(model, price, actor)
        return price

    async def unset(self, model: str, *, actor: str) -> None:
        """Take a model's price away: an adapter and the base model then have the default's, which without is free.

        Raises:
            NotFound, RegistryUnavailable
        """
        await self._change(model, None, actor)

    async def _change(self, model: str, new: Price | None, actor: str) -> None:
        async with self._database.write() as connection:
            tenant, subject = await _subject(connection, model)
            old = (await prices_repo.all_prices(connection)).get(subject)
            if old is None and new is None:
                raise NotFound(f"{model!r} has no price", param="model")
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
    """The owner's slug, and what the price is kept under."""
    if model in (DEFAULT, BASE):
        return None, model
    tenant, _, adapter = model.partition("/")
    found = await adapter_or_404(connection, await tenant_or_404(connection, tenant, lock=True), adapter)
    return tenant, f"adapter:{found.id}"


def _price(field: str, text: object) -> int:
    try:
        return parse_price(text)
    except InvalidAmount as error:
        raise InvalidRequest(f"{field}: found {str(text)[:80]!r}, allowed {error}", param=field) from None


def _shown(price: Price | None) -> dict[str, str] | None:
    if price is None:
        return None
    return {name: price_text(getattr(price, name)) for name in ("prompt", "cached", "output")}
