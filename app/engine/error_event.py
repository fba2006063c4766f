"""Server-sent event for an error inside a stream."""

import json

from app.domain.errors import ROWS, TenoraError
from app.observability.context import note_error


def error_event(error: TenoraError) -> str:
    """Format an error as a server-sent event, in the envelope of the OpenAI routes."""
    row = ROWS[type(error)]
    note_error(row.code)
    body = {"message": error.message, "type": row.type, "param": error.param, "code": row.code}
    return f"data: {json.dumps({'error': body})}\n\n"
