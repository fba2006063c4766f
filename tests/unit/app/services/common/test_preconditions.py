"""If-Match and If-None-Match as in RFC 9110."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import InvalidRequest, PreconditionFailed
from app.services.common.preconditions import etag, read_precondition


@pytest.mark.parametrize(
    ("if_match", "if_none_match", "revision", "holds"),
    [
        (None, None, 7, True),
        (None, None, None, True),
        ('"7"', None, 7, True),
        ('"6", "7"', None, 7, True),
        ('"6"', None, 7, False),
        ('"07"', None, 7, False),
        ('W/"7"', None, 7, False),
        ('""', None, 7, False),
        ('"7"', None, None, False),
        ("*", None, 7, True),
        (" * ", None, None, False),
        (None, "*", 7, False),
        (None, "*", None, True),
        (None, '"7"', 7, False),
        (None, 'W/"7"', 7, False),
        (None, '"6"', 7, True),
        ('"7"', '"7"', 7, False),
    ],
)
def test_conditions(if_match: str | None, if_none_match: str | None, revision: int | None, holds: bool) -> None:
    condition = read_precondition(if_match, if_none_match)
    if holds:
        condition.check(revision)
        return
    with pytest.raises(PreconditionFailed) as caught:
        condition.check(revision)
    assert ("does not exist" if revision is None else etag(revision)) in caught.value.message


@pytest.mark.parametrize(
    "header", ["", "7", '"7', '"7" "8"', '*, "7"', '"7",', 'w/"7"', '"' + "7" * 65 + '"', '"7",' * 400]
)
def test_what_is_no_list_of_etags_is_refused(header: str) -> None:
    with pytest.raises(InvalidRequest, match=r"if-match is .*; it must be"):
        read_precondition(header, None)


@given(st.text(), st.integers(1))
def test_any_text_is_refused_or_a_condition(header: str, revision: int) -> None:
    try:
        read_precondition(header, header).check(revision)
    except (InvalidRequest, PreconditionFailed):
        return
    raise AssertionError("a thing cannot have and not have one ETag")
