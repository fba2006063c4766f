"""``/docs``: pages for people, usable without internet access."""

from functools import cache
from importlib import resources

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse, Response

from app.api.errors import NO_ROUTE
from app.domain.errors import NotFound

router = APIRouter(include_in_schema=False)

_TITLE = "Tenora"
_OPENAPI = "/openapi.json"

#: Swagger UI file -> media type.
_FILES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}


@router.get("/docs")
async def docs() -> HTMLResponse:
    script, style, icon = (f"/docs/{name}" for name in _FILES)
    return get_swagger_ui_html(
        openapi_url=_OPENAPI,
        title=_TITLE,
        swagger_js_url=script,
        swagger_css_url=style,
        swagger_favicon_url=icon,
        # Without this, the page sends the document to Swagger's online validator.
        swagger_ui_parameters={"validatorUrl": None},
    )


@router.get("/docs/{name}")
async def docs_file(name: str) -> Response:
    if name not in _FILES:
        raise NotFound(NO_ROUTE)
    return Response(_read(name), media_type=_FILES[name], headers={"cache-control": "max-age=3600"})


@cache
def _read(name: str) -> bytes:
    return (resources.files("fastapi_swagger.resources") / name).read_bytes()
