"""Examples of files and uploads in the OpenAPI document."""

from typing import Any

_ID = "file-8d0f7c3a1b9e4d62a5f0c7e913b84d26"
_UPLOAD_ID = "upload_51c2f0a97be84c3d9d06f4a1e2b73c58"
_PART_IDS = ["part_a3d94be1c0f7482f9c5e6d80b1f2a347", "part_0f6e2c81d5b34a7c8e9d1a2b3c4d5e6f"]
_NAME = "reviews.jsonl"
_CREATED, _EXPIRES = 1_772_357_400, 1_774_949_400

_FILE = {
    "id": _ID,
    "object": "file",
    "bytes": 407_334,
    "created_at": _CREATED,
    "expires_at": _EXPIRES,
    "filename": _NAME,
    "purpose": "batch",
    "status": "processed",
}

#: Examples of bodies, by the name of their schema.
BODIES: dict[str, Any] = {
    "FileUploadComplete": {"part_ids": _PART_IDS},
    "FileUploadCreate": {
        "bytes": 407_334,
        "filename": _NAME,
        "mime_type": "application/jsonl",
        "purpose": "batch",
    },
}

#: Examples of answers, by the name of their schema.
ANSWERS: dict[str, Any] = {
    "DeletedFile": {
        "id": _ID,
        "object": "file",
        "deleted": True,
        "deletion": "b3f2c1d0a9e84f7cb3f2c1d0a9e84f7c",
    },
    "File": _FILE,
    "FilePart": {
        "id": _PART_IDS[0],
        "object": "upload.part",
        "created_at": _CREATED,
        "upload_id": _UPLOAD_ID,
    },
    "FileUpload": {
        "id": _UPLOAD_ID,
        "object": "upload",
        "bytes": 407_334,
        "created_at": _CREATED,
        "expires_at": _CREATED + 86_400,
        "filename": _NAME,
        "purpose": "batch",
        "status": "completed",
        "file": _FILE,
    },
    "Files": {"object": "list", "data": [_FILE], "first_id": _ID, "last_id": _ID, "has_more": False},
}
