"""JSON schemas of a version's provenance and description."""

from datetime import datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from app.domain.adapters import Version


class BaseOut(BaseModel):
    name: str
    digest: str = Field(description="`sha256:` and 64 hex digits, over its config and the index of its weights")


class ProvenanceOut(BaseModel):
    """Provenance of a version. Fields are null on versions that were published before Tenora recorded them."""

    uploaded_by: str = Field(description="Id of the key that published it")
    uploaded_by_name: str | None = Field(
        description="Owner of that key, or else its name; null for a key of the platform"
    )
    uploaded_at: datetime
    uploaded_from: str | None = Field(description="Address that the upload came from")
    source: dict[str, Any] = Field(
        description="Source: its `kind` and details of that kind, e.g. the recipe of a merge"
    )
    training_run: str | None
    peft_version: str | None = Field(description="PEFT version in `adapter_config.json`")
    alpha: float | None
    target_modules: list[str] | None = Field(description="Linear layers that it changes")
    parameters: int | None = Field(description="Number of values in its tensors")
    dtype: str | None = Field(description="Data type of its tensors, in safetensors' spelling")
    base: BaseOut | None = Field(description="Base model that it was checked against")

    @classmethod
    def of(cls, version: Version) -> Self:
        provenance = version.provenance
        return cls(
            uploaded_by=version.created_by,
            uploaded_by_name=version.creator,
            uploaded_at=version.created_at,
            uploaded_from=provenance.uploaded_from,
            source=dict(provenance.source),
            training_run=provenance.training_run,
            peft_version=provenance.peft_version,
            alpha=provenance.alpha,
            target_modules=None if provenance.target_modules is None else list(provenance.target_modules),
            parameters=provenance.parameters,
            dtype=provenance.dtype,
            base=base_of(version),
        )


class VersionPatch(BaseModel):
    """Changes of a version. Each field in the body is replaced as a whole."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    labels: dict[str, str] | None = Field(None, description="Name -> value; replaces all labels")
    card: str | None = Field(None, description="Free text about the version, shown as plain text")
    training_run: str | None = Field(None, description="HTTP or HTTPS link to the training run; null removes it")
    defaults: dict[str, Any] | None = Field(None, description="Default values of request fields")


def base_of(version: Version) -> BaseOut | None:
    """Return the base that a version was validated against, or None if it was not recorded."""
    name, digest = version.provenance.base_name, version.provenance.base_digest
    return None if name is None or digest is None else BaseOut(name=name, digest=f"sha256:{digest}")
