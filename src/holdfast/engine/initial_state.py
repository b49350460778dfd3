"""What the state of a session has from the beginning, as the agent says that it is made for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.agents import Agent
from holdfast.domain.state import select_own, split_by_scope
from holdfast.errors import StaleState
from holdfast.stores.base import Store
from holdfast.stores.sessions import NewSession


async def add_initial_state(store: Store, new: NewSession, agent: Agent | None) -> NewSession:
    """A session that is about to be made, with the state of its agent under what it has itself.

    What sessions share is written here, and only where nothing stands: for a session that is not made after all, too.

    Args:
        store: where it will be.
        new: the session.
        agent: whom it is made for.

    Raises:
        TooLarge: a limit of the state would be passed.
    """
    if agent is None or not agent.state:
        return new
    given = {key: value for key, value in agent.state.items() if key not in new.state and value is not None}
    parts = split_by_scope(given)
    for scope, user_id in (("user", new.user_id), ("app", None)):
        if scope in parts:
            await _write_missing(store, user_id, parts[scope], new.timestamp)
    return msgspec.structs.replace(new, state={**select_own(given), **new.state})


async def _write_missing(store: Store, user_id: str | None, values: Mapping[str, Any], now: int) -> None:
    """Write those values of a scope under whose keys nothing stands."""
    found = (await store.state(user_id, names=values)).values or {}
    for name, value in values.items():
        if name not in found:
            with suppress(StaleState):  # somebody else was quicker: theirs stands
                await store.change_state(user_id, {name: value}, timestamp=now, values={name: None})
