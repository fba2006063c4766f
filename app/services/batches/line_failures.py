"""Results of lines that used nothing, until the database has them."""

import asyncio

from app.database import batch_results
from app.database.session import Database
from app.domain.batches import LineResult


class LineFailures:
    """Buffer of results. Unlike answers they are in no journal: after a crash their lines run again."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._results: list[LineResult] = []
        self._flushing = asyncio.Lock()

    def add(self, result: LineResult) -> None:
        self._results.append(result)

    async def flush(self) -> None:
        """Write the results. Those of concurrent calls are written when this returns.

        Raises:
            RegistryUnavailable
        """
        async with self._flushing:
            results, self._results = self._results, []
            if not results:
                return
            try:
                async with self._database.write() as connection:
                    await batch_results.add_failures(connection, results)
            except BaseException:
                self._results = results + self._results
                raise
