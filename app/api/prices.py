"""``/admin/prices``: token prices, for platform keys only."""

from typing import Self

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from app.api.auth import Admin, GatewayDep, require
from app.api.schemas import answers
from app.domain.access import Scope
from app.domain.money import Price, amount_text, price_text

router = APIRouter(prefix="/admin/prices", tags=["prices"], dependencies=[Depends(require(Scope.ADMIN))])


class PricePut(BaseModel):
    """Prices per million tokens, as decimal strings with up to six decimals."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    prompt: str = Field(examples=["0.15"])
    cached: str | None = Field(
        None, description="Price of prompt tokens from the engine's cache; default: the price of `prompt`"
    )
    output: str = Field(examples=["0.60"])
    batch: str | None = Field(
        None, description="Factor of these prices for lines of batches, 0 to 10; default: 1", examples=["0.5"]
    )


class PriceOut(BaseModel):
    model: str = Field(description="Model: `default`, `base` or `tenant/adapter`")
    prompt: str
    cached: str
    output: str
    batch: str = Field(description="Factor of these prices for lines of batches")

    @classmethod
    def of(cls, model: str, price: Price) -> Self:
        texts = {name: price_text(getattr(price, name)) for name in ("prompt", "cached", "output")}
        return cls(model=model, **texts, batch=amount_text(price.batch))


class PricesOut(BaseModel):
    currency: str
    data: list[PriceOut]


@router.get("", summary="List prices per million tokens", responses=answers())
async def list_prices(gateway: GatewayDep) -> PricesOut:
    """A price applies to `default`, to the base model as `base`, or to one adapter as `tenant/adapter`."""
    prices = await gateway.limits.prices.list()
    return PricesOut(
        currency=gateway.settings.currency, data=[PriceOut.of(model, price) for model, price in prices.items()]
    )


@router.put("/{model:path}", summary="Set a price for future requests", responses=answers(400, 404))
async def put_price(model: str, body: PricePut, caller: Admin, gateway: GatewayDep) -> PriceOut:
    """Prices are decimals per million tokens. Running requests keep the price at their arrival.

    A token of a batch costs its price times `batch`, rounded down to 10^-12 of the currency.
    """
    return PriceOut.of(model, await gateway.limits.prices.set(model, body.model_dump(), actor=caller.key_id))


@router.delete("/{model:path}", status_code=204, summary="Delete a price", responses=answers(404))
async def delete_price(model: str, caller: Admin, gateway: GatewayDep) -> None:
    """Requests for the adapter cost the price of `default` from then on."""
    await gateway.limits.prices.unset(model, actor=caller.key_id)
