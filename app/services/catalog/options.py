"""Publish options: the uploader's metadata of a version, as one JSON object for every source of bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adapters.identity import DEFAULT_ALIAS, parse_slug
from app.domain.errors import InvalidRequest
from app.services.catalog.labels import checked_card, checked_labels, checked_training_run
from app.services.prompts.defaults import checked_defaults
from app.settings import LimitSettings

_FIELDS = ("alias", "labels", "card", "training_run", "defaults", "allow_no_effect", "wait")


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """Options of an upload.

    Attributes:
        alias: the one alias to move to the version once it is ready; None moves none.
        card: free text about the version.
        defaults: checked adapter defaults, see :mod:`app.services.prompts.defaults`.
        allow_no_effect: whether to keep a version that answers exactly as the base does.
        wait: whether the call returns after the smoke check, or at once.
        sent_fields: names of the fields that the uploader sent; the others have their defaults.
        admin: whether a platform key publishes, which may set a chat template.
        source, uploaded_from: see :class:`app.domain.adapters.Provenance`; never taken from the uploader.
    """

    alias: str | None = DEFAULT_ALIAS
    labels: Mapping[str, str] = field(default_factory=dict)
    card: str = ""
    training_run: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    allow_no_effect: bool = False
    wait: bool = True
    sent_fields: frozenset[str] = frozenset()
    admin: bool = False
    source: Mapping[str, Any] = field(default_factory=lambda: {"kind": "upload"})
    uploaded_from: str | None = None


def read_options(
    raw: object,
    limits: LimitSettings,
    *,
    admin: bool,
    source: Mapping[str, Any],
    uploaded_from: str | None,
    default_alias: str | None = DEFAULT_ALIAS,
) -> PublishOptions:
    """Check an ``options`` object.

    Args:
        raw: parsed JSON; every field may be missing. ``"alias": null`` moves no alias.
        admin: whether the request uses a platform key, which may set a chat template.
        source, uploaded_from: see :class:`app.domain.adapters.Provenance`.
        default_alias: alias to move if ``raw`` names none.

    Raises:
        InvalidRequest, Forbidden
        adapters.errors.InvalidName: the alias is not a valid name.
    """
    if not isinstance(raw, Mapping):
        raise InvalidRequest(f"options is of type {type(raw).__name__}, but must be a JSON object.", param="options")
    for name in raw:
        if name not in _FIELDS:
            raise InvalidRequest(
                f"options has the unknown field {str(name)[:80]!r}. The fields are {', '.join(_FIELDS)}.",
                param=f"options.{name}"[:80],
            )
    alias = raw.get("alias", default_alias)
    training_run = raw.get("training_run")
    return PublishOptions(
        alias=None if alias is None else parse_slug(_text("alias", alias), field="alias"),
        labels=checked_labels(raw.get("labels", {})),
        card=checked_card(raw.get("card", "")),
        training_run=None if training_run is None else checked_training_run(training_run),
        defaults=checked_defaults(raw.get("defaults", {}), limits=limits, admin=admin),
        allow_no_effect=_flag("allow_no_effect", raw.get("allow_no_effect", False)),
        wait=_flag("wait", raw.get("wait", True)),
        sent_fields=frozenset(raw),
        admin=admin,
        source=source,
        uploaded_from=uploaded_from,
    )


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} is {value!r:.80}, but must be a string.", param=f"options.{field}")
    return value


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{field} is {value!r:.80}, but must be true or false.", param=f"options.{field}")
    return value
