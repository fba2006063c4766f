"""Query parameters that search and order a list."""

from typing import Annotated, Literal

from fastapi import Depends, Query

from app.domain.searches import Search, Sort

Text = Annotated[str | None, Query(alias="q", description="Part of a name, in upper or lower case")]
Order = Annotated[Sort, Query(description="Order; a minus reverses it. Keep it from page to page.")]


async def _search(text: Text = None, sort: Order = Sort.CREATED) -> Search:
    return Search(text or None, sort)


async def _search_by_name(
    text: Text = None,
    sort: Annotated[Literal["name", "-name"], Query(description="Order by name; a minus reverses it.")] = "name",
) -> Search:
    return Search(text or None, Sort(sort))


#: Search of a list that is always ordered by name.
SearchedByName = Annotated[Search, Depends(_search_by_name)]
#: Search and order of a list.
Searched = Annotated[Search, Depends(_search)]
