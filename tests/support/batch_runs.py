"""Lines over several adapters for tests of running batches, and the check of their sums."""

import random

from sqlalchemy import select

from app.database.tables import batch_results, usage, usage_hours
from app.domain.adapters import Version
from app.domain.batches import Batch, BatchState
from tests.support import batches as support
from tests.support.batches import Server, content, line
from tests.support.registry import Node

#: States in which a batch whose lines were validated ends.
FINAL = (BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED)


def mixed(count: int) -> list[dict[str, object]]:
    """Lines over the base and two adapters, shuffled."""
    names = random.Random(7).choices(["demo", "fast", "slow"], k=count)
    return [line(f"row {number}", f"p{number}", model=name) for number, name in enumerate(names)]


async def versions(node: Node, slug: str = "pricing") -> dict[str, Version | None]:
    return {"demo": None, "fast": await node.publish(slug, "fast", "a"), "slow": await node.publish(slug, "slow", "b")}


async def check_sums(server: Server, batch: Batch) -> Batch:
    """Check that output, usage records and the batch's sums say the same, to the token."""
    now = await support.batch_now(server.node.database, batch.id)
    output = await content(server, now, now.output_file_id)
    prompt = sum(entry["response"]["body"]["usage"]["prompt_tokens"] for entry in output)
    answer = sum(entry["response"]["body"]["usage"]["completion_tokens"] for entry in output)
    assert now.completed == len(output)
    assert (now.usage.prompt_tokens, now.usage.output_tokens) == (prompt, answer)
    async with server.node.database.read() as connection:
        rows = (await connection.execute(select(usage).order_by(usage.c.request_id))).all()
        left = (await connection.execute(select(batch_results.c.line))).all()
        hours = (await connection.execute(select(usage_hours))).all()
    lines = {row.request_id: (row.prompt_tokens, row.output_tokens) for row in rows}
    said = {
        entry["response"]["request_id"]: tuple(
            entry["response"]["body"]["usage"][name] for name in ("prompt_tokens", "completion_tokens")
        )
        for entry in output
    }
    assert lines == said
    assert len(rows) == len(output)
    assert (sum(hour.prompt_tokens for hour in hours), sum(hour.output_tokens for hour in hours)) == (prompt, answer)
    assert not left
    return now
