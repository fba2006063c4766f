"""Publish route: ``POST .../adapters/{adapter}/versions``, multipart, mounted with the adapter routes."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from adapters.cache import CONFIG_NAME, WEIGHTS_NAME
from adapters.identity import DEFAULT_ALIAS
from app.api.auth import GatewayDep, Owner, require_owner
from app.api.multipart import ARCHIVE_NAME, OPTIONS_NAME, receive_upload
from app.api.openapi_components import reference
from app.api.schemas import VersionOut, answers
from app.domain.access import Scope
from app.domain.adapters import VersionState
from app.served_base import ServedBase
from app.services.catalog.options import PublishOptions, read_options
from app.services.publishing.publishing import Published
from app.settings import LimitSettings

router = APIRouter(tags=["adapters"])

Writer = Annotated[Owner, Depends(require_owner(Scope.ADAPTERS_WRITE))]

_MAX_DIGITS = 19
_FILE = {"type": "string", "format": "binary"}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        CONFIG_NAME: _FILE,
                        WEIGHTS_NAME: _FILE,
                        ARCHIVE_NAME: _FILE,
                        OPTIONS_NAME: reference("PublishOptions"),
                    },
                    "anyOf": [{"required": [CONFIG_NAME, WEIGHTS_NAME]}, {"required": [ARCHIVE_NAME]}],
                }
            }
        },
    }
}


@router.post(
    "/{adapter}/versions",
    status_code=201,
    summary="Publish a version: PEFT's two files, or a .tar.gz or .zip of their folder",
    responses={
        **answers(404, 408, 409),
        200: {
            "model": VersionOut,
            "description": "A version with these bytes already exists; its alias and description follow the options",
        },
        202: {"model": VersionOut, "description": "`wait` is false and the smoke check still runs"},
    },
    openapi_extra=_BODY,
)
async def publish_version(
    adapter: str, owner: Writer, gateway: GatewayDep, request: Request, response: Response
) -> VersionOut:
    """The server checks the files, loads the version and sends it a smoke prompt.

    Then it moves the alias in `options`, by default `default`. Publishing the same bytes again returns the existing
    version.
    """
    await gateway.publishing.check_target(owner.tenant, adapter)
    limits, content_type = gateway.settings.limits, request.headers.get("content-type", "")
    async with gateway.spool.folder(owner.tenant) as folder:
        length = _announced(request)
        async with gateway.refusals.recording(owner.tenant, adapter, actor=owner.caller.key_id):
            received = await receive_upload(request.stream(), content_type, folder, limits, length=length)
        options = publish_options(received.options, request, owner, limits, source={"kind": received.kind})
        published = await gateway.publishing.publish(
            owner.tenant, adapter, received.upload, options, actor=owner.caller.key_id
        )
    return version_answer(published, response, gateway.base, versions_path=request.url.path)


def _announced(request: Request) -> int | None:
    """Return the body's length from Content-Length, or None if the header is missing or no number."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdecimal() and len(length) < _MAX_DIGITS else None


def publish_options(
    raw: object,
    request: Request,
    owner: Owner,
    limits: LimitSettings,
    *,
    source: Mapping[str, Any],
    default_alias: str | None = DEFAULT_ALIAS,
) -> PublishOptions:
    """Validate the ``options`` of a request that publishes: upload, archive, import or merge.

    Raises:
        InvalidRequest, Forbidden, InvalidName
    """
    host = request.client.host if request.client else None
    admin = Scope.ADMIN in owner.caller.scopes
    return read_options(raw, limits, admin=admin, source=source, uploaded_from=host, default_alias=default_alias)


def version_answer(published: Published, response: Response, base: ServedBase, *, versions_path: str) -> VersionOut:
    """Set status and ``Location``: 201 for a new version, 200 for an existing one, 202 while it is validating.

    Args:
        versions_path: path of the adapter's versions under the caller's prefix.
    """
    response.status_code = 201 if published.created else 200
    if published.version.state is VersionState.VALIDATING:
        response.status_code = 202
    response.headers["location"] = f"{versions_path}/{published.version.number}"
    return VersionOut.of(published.version, base)
