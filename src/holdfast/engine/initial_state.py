"""Add the initial state that an agent configures to a new session."""

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
    """Return a new session with the initial state of its agent. Keys that the session already has keep their values.

    Initial values of shared state (`user:` and `app:` keys) are written by this call, even if the session is not created in the
    end. Shared keys that already have a value keep it.

    Args:
        store: where the session will be created.
        new: the session.
        agent: the session's agent, or None.

    Raises:
        TooLarge: a limit of the state would be exceeded.
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
    """Write only those values whose keys have no value yet in the shared state."""
    found = (await store.state(user_id, names=values)).values or {}
    for name, value in values.items():
        if name not in found:
            with suppress(StaleState):  # another process was faster, and its value stays
                await store.change_state(user_id, {name: value}, timestamp=now, values={name: None})
