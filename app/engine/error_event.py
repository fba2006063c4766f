"""Error in the middle of a stream, as a server-sent event."""

import json

from app.domain.errors import ROWS, TenoraError
from app.observability.context import note_error


def error_event(error: TenoraError) -> str:
    """An error in the middle of a stream, in the envelope of the OpenAI routes."""
    row = ROWS[type(error)]
    note_error(row.code)
    body = {"message": error.message, "type": row.type, "param": error.param, "code": row.code}
    return f"data: {json.dumps({'error': body})}\n\n"
