"""The URLs of servers' databases: what their options say, and what is told of those that say nothing."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidRequest
from holdfast.stores.sql.address import MOST_POOL, parse_address, with_pool

OPTIONS = ("socket", "pool", "sslmode")
URL = "postgresql://ann:secret@host:7000/db"


def pool(option: str) -> int:
    """How many connections a URL with this allows, where 10 are usual."""
    return parse_address(URL + option, options=OPTIONS).pool_size(10)


@pytest.mark.parametrize(
    ("option", "size"), [("", 10), ("?pool=1", 1), ("?pool=007", 7), (f"?pool={MOST_POOL}", MOST_POOL)]
)
def test_a_url_says_how_many_connections(option: str, size: int) -> None:
    """The fewest and the most that it may say; one that says nothing has as many as are usual."""
    assert pool(option) == size


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "many", "٣", "²", f"{MOST_POOL + 1}"])
def test_invalid_connection_counts_are_rejected(text: str) -> None:
    """With what it may be, where it stands, and no password."""
    with pytest.raises(InvalidRequest) as refused:
        pool(f"?pool={text}")
    said = str(refused.value)
    assert said == f"postgresql://host:7000/db: pool must be a number from 1 to {MOST_POOL}, not {text!r}"
    assert refused.value.param == "url"


def test_parts_of_a_url_are_percent_encoded() -> None:
    found = parse_address("postgresql://a%40n:s%2Fcr%3Ft@host/d%20b", options=OPTIONS)
    assert (found.user, found.password, found.database) == ("a@n", "s/cr?t", "d b")


def test_the_url_has_precedence_over_defaults() -> None:
    """An index beside a store has fewer connections, unless its URL says."""
    for option, size in (("", 4), ("?pool=7", 7)):
        assert with_pool(parse_address(URL + option, options=OPTIONS), 4).pool_size(10) == size


def test_unknown_options_are_rejected() -> None:
    """The first of them is named, and those that there are, in order; a fragment is none either."""
    for given, first in (("?zeal=1&pool=2&nope=3", "nope"), ("?pool=2#rest", "#")):
        with pytest.raises(InvalidRequest) as refused:
            parse_address(URL + given, options=OPTIONS)
        said = str(refused.value)
        assert said == f"postgresql://host:7000/db: unknown option {first}; this store supports pool, socket, sslmode"
        assert refused.value.param == "url"
