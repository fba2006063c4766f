"""``python -m app.cli.without_limits serve``: Tenora without limits and metering, to measure their cost."""

from functools import cached_property

from app.cli.root import app
from app.services.serving.inference import InferenceService
from app.wiring import container
from app.wiring.gateway import Gateway


class _Unguarded(Gateway):
    """Gateway whose requests bypass limits and metering."""

    @cached_property
    def inference(self) -> InferenceService:
        service = super().inference
        # Not a setting: no server of tenants should run like this.
        service._limiting = service._meter = None
        return service


if __name__ == "__main__":
    container.Gateway = _Unguarded  # type: ignore[attr-defined]
    app()
