"""Lines of a batch's output file and error file, in OpenAI's format."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from app.domain.batches import Chunk, LineResult, line_request_id
from app.domain.errors import Row, TenoraError

#: Codes of lines without an answer.
ADAPTER_UNAVAILABLE = "adapter_unavailable"
BATCH_CANCELLED, BATCH_EXPIRED = "batch_cancelled", "batch_expired"


@dataclass(frozen=True, slots=True)
class LineIdentity:
    """A line of a chunk.

    Attributes:
        custom_id: the caller's id for it; None if the input file is lost.
    """

    chunk: Chunk
    number: int
    custom_id: str | None

    @property
    def request_id(self) -> str:
        return line_request_id(self.chunk.batch_id, self.number)


def answered(line: LineIdentity, body: dict[str, Any], version: str | None) -> LineResult:
    """Build the result of an answered line.

    Args:
        version: version that answered; None: the base model.
    """
    # Faster than json.dumps. JSON has no NaN: write null, as the routes do.
    answer = to_json(body, inf_nan_mode="null").decode()
    content = (
        f'{{"id": {json.dumps(_result_id(line))}, "custom_id": {json.dumps(line.custom_id)}, '
        f'"response": {{"status_code": 200, "request_id": {json.dumps(line.request_id)}, "body": {answer}}}, '
        f'"error": null, "tenora": {json.dumps({"version": version})}}}'
    )
    return LineResult(line.chunk.batch_id, line.number, line.chunk.number, True, content)


def refused(line: LineIdentity, error: TenoraError, row: Row) -> LineResult:
    """Build the result of a line whose body the server or its engine refused."""
    envelope = {"message": error.message, "type": row.type, "param": error.param, "code": row.code}
    response = {"status_code": row.status, "request_id": line.request_id, "body": {"error": envelope}}
    return _failed(line, response, row.code, error.message)


def failed(line: LineIdentity, code: str, message: str) -> LineResult:
    """Build the result of a line that never ran."""
    return _failed(line, None, code, message)


def _failed(line: LineIdentity, response: dict[str, Any] | None, code: str, message: str) -> LineResult:
    # ASCII: a message may quote half of a surrogate pair, which UTF-8 cannot represent.
    content = json.dumps(
        {
            "id": _result_id(line),
            "custom_id": line.custom_id,
            "response": response,
            "error": {"code": code, "message": message},
            "tenora": {"version": None},
        }
    )
    return LineResult(line.chunk.batch_id, line.number, line.chunk.number, False, content)


def _result_id(line: LineIdentity) -> str:
    return f"batch_req_{line.chunk.batch_id.removeprefix('batch_')}_{line.number}"
