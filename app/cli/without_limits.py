"""``python -m app.cli.without_limits serve``: Tenora without limits and metering, to measure what they cost."""

from functools import cached_property

from app import main
from app.cli.root import app
from app.services.serving.inference import InferenceService
from app.wiring.container import Container


class _Unguarded(Container):
    """A server whose requests go past its limits and its meter."""

    @cached_property
    def inference(self) -> InferenceService:
        service = super().inference
        # No setting does this: nobody who serves tenants wants it.
        service._limiting = service._meter = None
        return service


if __name__ == "__main__":
    main.Process = _Unguarded  # type: ignore[attr-defined]
    app()
