"""Store ADK's sessions and their events."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session

import holdfast
from holdfast.adapters._shared import finish_write
from holdfast.adapters.adk.contents import prepare_event, read_event
from holdfast.adapters.adk.large_values import make_own_records, read_state, write_shared
from holdfast.adapters.adk.state import ELSEWHERE, UPDATED, EncodedState, encode_state
from holdfast.adapters.adk.tenant import TenantService, ensure_session, get_stored, is_stored_elsewhere
from holdfast.errors import SessionExists, SessionNotFound, StaleSession

PAGE: Final = 500
"""Maximum number of log entries or sessions that are read at a time."""


class HoldfastSessionService(TenantService, BaseSessionService):
    """Stores ADK's sessions and their events.

    Args:
        hf: an open `Holdfast`; or a portal, for several event loops.
        ttl: idle time in milliseconds after which a session ends; 0: sessions never end, as in ADK; None: the setting of `hf`.
    """

    def __init__(self, hf: holdfast.Holdfast | holdfast.Portal, *, ttl: int | None = 0) -> None:
        super().__init__(hf)
        self._ttl = ttl
        self._appending: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session. Raises `AlreadyExistsError` if the user has one with this id. A cancelled call ends only after the write."""
        name = (session_id or "").strip() or None

        async def create(hf: holdfast.Holdfast) -> Session:
            created = await _create(hf, name, user_id, encode_state(state or {}), self._ttl)
            return await _read_session(app_name, hf, created, GetSessionConfig(num_recent_events=0))

        return await finish_write(self._run(app_name, create))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events, or None if the user has no such session."""
        if not user_id or not session_id.strip():
            return None

        async def get(hf: holdfast.Holdfast) -> Session | None:
            try:
                return await _read_session(app_name, hf, await get_stored(hf, session_id, user_id), config)
            except SessionNotFound:
                return None

        return await self._run(app_name, get)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of a user, or of all users, without their events. The session that was updated longest ago comes first."""

        async def find(hf: holdfast.Holdfast) -> list[Session]:
            infos = [] if user_id == "" else await _list_infos(hf, user_id)
            app = await read_state(hf, await hf.app_state().all(), "")
            owners = {info.user_id for info in infos}
            users = {owner: await read_state(hf, await hf.user_state(owner).all(), owner) for owner in owners}
            own = [await read_state(hf, info.state, info.user_id, info.id) for info in infos]
            states = [{**state, **app, **users[info.user_id]} for state, info in zip(own, infos, strict=True)]
            return [
                _make_session(app_name, info, copy.deepcopy(state)) for info, state in zip(infos, states, strict=True)
            ]

        listed = await self._run(app_name, find)
        return ListSessionsResponse(
            sessions=sorted(listed, key=lambda one: (one.last_update_time, one.user_id, one.id))
        )

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with all its data, including its artifacts."""
        ref = holdfast.SessionRef(user_id, session_id.strip())
        await finish_write(self._run(app_name, lambda hf: hf.delete(ref)))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state that all sessions of a user share, without the prefix `user:`."""

        async def get(hf: holdfast.Holdfast) -> dict[str, Any]:
            state = await read_state(hf, await hf.user_state(user_id).all(), user_id)
            return {key.removeprefix("user:"): value for key, value in state.items()}

        return await self._run(app_name, get)

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event and its changes of the state in one transaction. Storing an equal event again changes nothing.

        A cancelled call ends only after the event is stored.

        Raises:
            StaleSessionError: the log has changed since `session` was read.
            SessionNotFoundError: the session does not exist.
        """
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        return await finish_write(self._run(session.app_name, lambda hf: self._append(hf, session, event)))

    async def _append(self, hf: holdfast.Holdfast, session: Session, event: Event) -> Event:
        key = session.app_name, session.user_id, session.id
        async with self._appending.setdefault(key, asyncio.Lock()):
            try:
                handle = hf.handle(await get_stored(hf, session.id, session.user_id))
                messages, idempotency_key = await prepare_event(event)
                small, large = encode_state(event.actions.state_delta)
                await write_shared(hf, large, session.user_id)
                appended = await handle.append(
                    messages,
                    expect_log=session._storage_update_marker,  # noqa: SLF001 - ADK's place for it
                    state={**small, UPDATED: event.timestamp},
                    records=make_own_records(handle, large),
                    idempotency_key=idempotency_key,
                )
            except SessionNotFound as exc:
                raise SessionNotFoundError(f"Session {session.id} not found.") from exc
            except StaleSession as exc:
                raise StaleSessionError(
                    f"session {session.id} was modified in storage after it was read: get it again before you append to it"
                ) from exc
            if appended.replayed and any(known.id == event.id for known in session.events):
                return event
            self._commit_event_to_session(session, event)
            session.last_update_time = event.timestamp
            if appended.version == appended.session.version:  # nothing was written after a repeated event
                session._storage_update_marker = appended.session.log_marker  # noqa: SLF001
        return event


async def _create(
    hf: holdfast.Holdfast, session_id: str | None, user_id: str, state: EncodedState, ttl: int | None
) -> Any:
    """Create a session and return its description. A session that was stored elsewhere becomes the new session, with its artifacts.

    A session with large values in its state is first created like one that is stored elsewhere, so that the values are stored together.
    """
    if not state.large:
        try:
            return await hf.create(session_id, user_id=user_id, state=state.small, ttl=ttl, greet=False)
        except SessionExists:
            pass
    handle = await ensure_session(hf, session_id or hf.new_id(), user_id)
    while is_stored_elsewhere(info := await handle.info()):
        await write_shared(hf, state.large, user_id)
        try:
            await handle.append(
                retire_from=0,
                state={**state.small, ELSEWHERE: None, UPDATED: hf.clock() / 1000},
                records=make_own_records(handle, state.large),
                expect=info.version,
            )
        except StaleSession:  # another event was copied meanwhile
            continue
        return await handle.update(ttl=ttl)
    raise AlreadyExistsError(f"Session with id {session_id} already exists.")


async def _read_session(app_name: str, hf: holdfast.Holdfast, info: Any, config: GetSessionConfig | None) -> Session:
    """Return a session with its events.

    `info`, which has the marker, was read before the events: if one is appended meanwhile, the session is stale rather than incomplete.
    """
    handle = hf.handle(info)
    state = await handle.state.all()
    own = await read_state(hf, state, info.user_id, info.id)
    return _make_session(app_name, info, own, await _read_events(handle, config or GetSessionConfig()))


def _make_session(app_name: str, info: Any, state: dict[str, Any], events: Sequence[Event] = ()) -> Session:
    made = Session(
        id=info.id,
        app_name=app_name,
        user_id=info.user_id,
        state=state,
        events=list(events),
        last_update_time=info.state.get(UPDATED, info.created_at / 1000),
    )
    made._storage_update_marker = info.log_marker  # noqa: SLF001 - ADK's place for it
    return made


async def _list_infos(hf: holdfast.Holdfast, user_id: str | None) -> list[Any]:
    """Return all sessions of a user or of the tenant.

    They are read newest first, because a session that changes meanwhile becomes the newest.
    """
    found: dict[tuple[str, str], Any] = {}
    after: holdfast.SessionRef | None = None
    while True:
        try:
            page = await hf.sessions(user_id=user_id, limit=PAGE, after=after)
        except SessionNotFound:  # the last session of the page was deleted meanwhile
            after = None
            continue
        found.update({(info.user_id, info.id): info for info in page.sessions if not is_stored_elsewhere(info)})
        if not page.has_more:
            return list(found.values())
        after = page.sessions[-1].ref


async def _read_events(handle: holdfast.SessionHandle, config: GetSessionConfig) -> list[Event]:
    """Return the newest events that `config` requests, in order. Entries are read newest first until there are enough events."""
    limit, since = config.num_recent_events, config.after_timestamp
    events: list[Event] = []
    stop: int | None = None
    while limit is None or len(events) < limit:
        size = PAGE if limit is None else min(PAGE, 2 * (limit - len(events)))
        page = await handle.entries(limit=size, stop=stop, descending=True)
        for event in await asyncio.to_thread(_parse_events, page):
            if since is not None and event.timestamp < since:
                return events[:limit][::-1]
            events.append(event)
        if len(page) < size:
            break
        stop = page[-1].seq
    return events[:limit][::-1]


def _parse_events(entries: Sequence[Any]) -> list[Event]:
    return [event for entry in entries if (event := read_event(entry.message.origin)) is not None]
