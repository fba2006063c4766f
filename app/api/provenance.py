"""JSON schemas of a version's provenance and description."""

from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from app.domain.adapters import Version


class BaseOut(BaseModel):
    name: str
    digest: str = Field(description="`sha256:` and 64 hex digits, over its config and the index of its weights")


class ProvenanceOut(BaseModel):
    """Fields are null on versions that were published before Tenora recorded them."""

    uploaded_by: str = Field(description="id of the key that published it")
    uploaded_at: datetime
    uploaded_from: str | None = Field(description="the address that the upload came from")
    source: dict[str, Any] = Field(description="`kind` and what that kind knows, e.g. the recipe of a merge")
    training_run: str | None
    peft_version: str | None = Field(description="as PEFT wrote it into `adapter_config.json`")
    alpha: float | None
    target_modules: list[str] | None = Field(description="the linear layers that it changes")
    parameters: int | None = Field(description="number of values in its tensors")
    dtype: str | None = Field(description="of its tensors, as safetensors names it")
    base: BaseOut | None = Field(description="the base model that it was checked against")

    @classmethod
    def of(cls, version: Version) -> Self:
        made = version.provenance
        return cls(
            uploaded_by=version.created_by,
            uploaded_at=version.created_at,
            uploaded_from=made.uploaded_from,
            source=dict(made.source),
            training_run=made.training_run,
            peft_version=made.peft_version,
            alpha=made.alpha,
            target_modules=None if made.target_modules is None else list(made.target_modules),
            parameters=made.parameters,
            dtype=made.dtype,
            base=base_of(version),
        )


class VersionPatch(BaseModel):
    """Each given field is replaced as a whole. The service validates the values."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    labels: dict[str, str] | None = Field(None, description="name -> value; replaces all labels")
    card: str | None = Field(None, description="free text about the version, shown as text")
    training_run: str | None = Field(None, description="an http or https link; null removes it")
    defaults: dict[str, Any] | None = Field(None, description="what requests get that say nothing else")


def base_of(version: Version) -> BaseOut | None:
    """Return the base that a version was validated against, or None if it was not recorded."""
    name, digest = version.provenance.base_name, version.provenance.base_digest
    return None if name is None or digest is None else BaseOut(name=name, digest=f"sha256:{digest}")
