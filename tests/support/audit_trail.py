"""Changes that leave audit rows, and tampering with them."""

from pathlib import Path

from app.services.access.audit import AuditService
from app.services.access.peppers import Peppers
from tests.support.registry import PEPPERS, Node

#: Seconds after which rows are settled.
SETTLED_S = 11


def service(node: Node, folder: Path, peppers: Peppers = PEPPERS) -> AuditService:
    return AuditService(node.database, peppers, folder / "audit-seal", clock=node.clock)


async def a_day(node: Node, *, tenants: int = 4) -> int:
    """Make some changes and return the number of rows that they left."""
    for number in range(tenants):
        slug = f"unit-{node.clock.now.timestamp():.0f}-{number}"
        await node.tenants.create(slug, name="Einkauf, größer", weight=1.5, actor="cli")
        await node.tenants.update(slug, quota={"adapters": number}, actor="cli")
        await node.keys.create(slug, name="app", actor="cli")
    return 3 * tenants


async def change(node: Node, *statements: object) -> None:
    async with node.database.write() as connection:
        for statement in statements:
            await connection.execute(statement)  # type: ignore[call-overload]
