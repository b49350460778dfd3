"""What tests of the databases' plans share: the statements that every turn waits for, those that list, and a connection that tells plans."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from holdfast.stores.postgres import OPTIONS
from holdfast.stores.postgres_connection import Connection, connect
from holdfast.stores.sql.address import parse_address


def with_values(sql: str, params: Sequence[Any]) -> str:
    """Return a statement of MySQL with its parameters written into it, for EXPLAIN."""

    def literal(found: re.Match[str]) -> str:
        value = params[int(found[1]) - 1]
        if value is None:
            return "NULL"
        if isinstance(value, str):
            value = value.encode()
        return f"x'{value.hex()}'" if isinstance(value, bytes) else repr(value)

    return re.sub(r"\?(\d+)", literal, sql)


ON_A_TURNS_PATH = (
    "session_get",
    "session_advance",
    "entry_insert",
    "entries_retire",
    "entries_count_from",
    "entries_among",
    "entry_live",
    "entry_is_live",
    "live_forward",
    "live_backward",
    "last_not_result",
    "last_visible",
    "view_get",
    "view_put",
    "views_delete",
    "idempotency_get",
    "idempotency_put",
    "turn_key_get",
    "turn_key_put",
    "call_insert",
    "calls_newest",
    "calls_backward",
    "calls_forward",
    "compaction_insert",
    "compactions_read",
    "compaction_mark",
    "compactions_list",
    "profile_put",
    "mark_last",
    "mark_places",
    "alias_last",
    "alias_places",
    "session_claim",
    "claim_want",
    "media_known",
    "media_get",
    "media_put",
    "media_use",
    "media_of",
    "media_uses_drop",
    "owner_get",
    "owner_take",
    "owner_put",
    "state_named",
    "state_read",
    "state_read_named",
    "state_put",
    "state_drop",
    "media_drop_unused",
    "item_get",
    "item_put",
    "items_expire",
)
"""Statements of the SQL stores that a turn makes, or may have to."""
LISTS = ("list_newest", "list_oldest", "list_newest_of_user", "list_oldest_of_user")
"""Statements that give a page of sessions."""


@asynccontextmanager
async def planning(url: str, mode: str) -> AsyncIterator[Connection]:
    """A connection as PostgreSQL stores have them, whose plans are made like that (`plan_cache_mode`)."""
    connection = await connect(parse_address(url, options=OPTIONS), "the server")
    try:
        await connection.execute(f"SET plan_cache_mode = {mode}")
        yield connection
    finally:
        await connection.close()
