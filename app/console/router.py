"""``/console``: pages of the console; ``/``: the landing page, which leads a browser there."""

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from app.console.assets import HASHED, INDEX, Asset, assets
from app.console.headers import SECURITY_HEADERS
from app.domain.errors import NotFound

router = APIRouter(include_in_schema=False)

_ABOUT = {
    "name": "Tenora",
    "description": "A server for many tenants' LoRA adapters on one base Llama",
    "console": "/console",
    "docs": "/docs",
    "openapi": "/openapi.json",
    "health": "/health/ready",
}
#: The browser asks each time whether a page is current.
_NO_CACHE = "no-cache"
#: A file whose name has the digest of its content never changes.
_IMMUTABLE = "public, max-age=31536000, immutable"
_NOT_MODIFIED = 304


@router.get("/")
async def about(request: Request) -> Response:
    """Lead a browser to the console; tell other clients where everything is."""
    if INDEX in assets() and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("/console", headers={"vary": "accept", **SECURITY_HEADERS})
    return JSONResponse(_ABOUT, headers={"vary": "accept"})


@router.api_route("/console", methods=["GET", "HEAD"])
@router.api_route("/console/{path:path}", methods=["GET", "HEAD"])
async def console(request: Request, path: str = "") -> Response:
    """Send a file of the build, or the page for every other path: the script in it reads the path.

    Raises:
        NotFound: the file does not exist, as after an update, or the console was not built.
    """
    files = assets()
    if path in files and path != INDEX:
        return _answer(request, files[path], _IMMUTABLE if path.startswith(HASHED) else _NO_CACHE)
    if path.startswith(HASHED):
        raise NotFound(f"There is no file {path[:80]!r} in this release of the console. Load the page again.")
    if INDEX not in files:
        raise NotFound("The console is not built. Run `make console`, or use a release that has it.")
    return _answer(request, files[INDEX], _NO_CACHE)


def _answer(request: Request, asset: Asset, cache_control: str) -> Response:
    headers = {"cache-control": cache_control, "etag": asset.etag, "vary": "accept-encoding", **SECURITY_HEADERS}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=_NOT_MODIFIED, headers=headers)
    content = asset.content
    if asset.gzipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["content-encoding"] = asset.gzipped, "gzip"
    return Response(content, media_type=asset.media_type, headers=headers)
