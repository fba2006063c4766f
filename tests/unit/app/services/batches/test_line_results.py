"""Lines of output files and error files, in OpenAI's shape."""

import json
import math

from app.domain.batches import Chunk, ChunkState, LinePlace
from app.domain.errors import InvalidRequest, row_of
from app.services.batches import line_results
from app.services.batches.line_results import LineIdentity

CHUNK = Chunk("batch_00ff00ff00ff00ff", 3, 7, "pricing@2", (LinePlace(12, 0, 10),), ChunkState.RUNNING)


def test_an_answer_is_one_line_of_json():
    line = LineIdentity(CHUNK, 12, 'row "12"\nor half of a pair: \ud83d')
    result = line_results.answered(line, {"text": "a\nb\u2028c \x00", "score": math.nan}, "pricing@2")
    assert (result.batch_id, result.line, result.chunk, result.succeeded) == (CHUNK.batch_id, 12, 3, True)
    assert "\n" not in result.content
    result.content.encode()
    assert json.loads(result.content) == {
        "id": "batch_req_00ff00ff00ff00ff_12",
        "custom_id": line.custom_id,
        "response": {
            "status_code": 200,
            "request_id": "batch-00ff00ff00ff00ff-12",
            "body": {"text": "a\nb\u2028c \x00", "score": None},
        },
        "error": None,
        "tenora": {"version": "pricing@2"},
    }


def test_a_refusal_has_the_status_and_the_envelope_of_the_route():
    error = InvalidRequest("temperature is '\ud83d'", param="temperature")
    row = row_of(error)
    assert row is not None
    result = line_results.refused(LineIdentity(CHUNK, 12, "row 12"), error, row)
    assert not result.succeeded
    result.content.encode()
    entry = json.loads(result.content)
    assert entry["response"]["status_code"] == 400
    assert entry["response"]["body"]["error"] == {
        "message": error.message,
        "type": "invalid_request_error",
        "param": "temperature",
        "code": "invalid_value",
    }
    assert entry["error"] == {"code": "invalid_value", "message": error.message}


def test_a_line_that_never_ran_has_no_response():
    result = line_results.failed(LineIdentity(CHUNK, 12, None), line_results.BATCH_EXPIRED, "too late")
    assert not result.succeeded
    entry = json.loads(result.content)
    assert (entry["custom_id"], entry["response"]) == (None, None)
    assert entry["error"] == {"code": "batch_expired", "message": "too late"}
