"""The handle of one session on a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.domain.interruptions import parse_heard
from holdfast.domain.record import RecordChange
from holdfast.domain.session import Entry, NewCompaction, Session, SessionRef, StoredCompaction
from holdfast.domain.state import Change
from holdfast.errors import Conflict, InvalidRequest, ServerError, SessionNotFound, StaleSession
from holdfast.limits import CONNECT_PAGE
from holdfast.numbers import check_whole
from holdfast.remote.artifacts import RemoteArtifacts
from holdfast.remote.objects import (
    Written,
    decode,
    parse_as,
    parse_entries,
    parse_entry,
    parse_page,
    parse_session,
    parse_with,
    parse_written,
    to_appended,
    to_compaction,
    to_interruption,
    to_log_json,
    to_speech,
    to_stored_compaction,
)
from holdfast.remote.records import RemoteRecords, to_record_operations
from holdfast.remote.state import RemoteFacts, RemoteState, to_operations
from holdfast.remote.transport import Transport, leave_out, make_key, match, name_order
from holdfast.remote.turns import OpenRemoteTurn, RemoteTurn, Steps
from holdfast.sessions.contexts import Context
from holdfast.sessions.explanation import Explanation
from holdfast.sessions.fields import check_session_fields, to_state_delta
from holdfast.sessions.handle import SessionHandle
from holdfast.sessions.interruption import Interruption
from holdfast.sessions.model_calls import CallPage, CallSummary
from holdfast.sessions.prompt_views import PromptView
from holdfast.sessions.session_log import SessionLog
from holdfast.sessions.speech import Speech, SpeechResult
from holdfast.signatures import Arguments, like
from holdfast.stores.log import Appended
from holdfast.wire.openai import to_chat_message, to_entry_json
from holdfast.wire.request_fields import check_keywords
from holdfast.wire.sendable import Sendable, check_flag, make_note, parse_sendable

T = TypeVar("T")
QueueMode = Literal["queue", "reject", "interrupt"]
_NEWEST: Final = 4
"""Newest entries that `pop` reads at a time."""
POP_TRIES: Final = 64
"""Attempts of `pop` while other writers are faster."""
_parse_calls = parse_page(partial(msgspec.convert, type=CallSummary))
_parse_compactions = parse_page(to_stored_compaction)


def to_wire(given: Sendable | Sequence[Sendable]) -> list[dict[str, Any]]:
    """Return messages as the REST API takes them. Raises `InvalidMessage` if one is not valid."""
    messages, own = parse_sendable(given)
    return [{**to_log_json(message), **fields} for message, fields in zip(messages, own, strict=True)]


def to_session_body(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a session as the REST API takes them. Raises the errors of `check_session_fields`."""
    fields = check_session_fields(given)
    if "system_messages" not in given:
        return dict(given)
    return {**given, "system_messages": [to_chat_message(one) for one in fields["system_messages"]]}


class RemoteSession:
    """One session on a server. The handle holds no log: every method is a request.

    Args:
        transport: the connections.
        ref: the session.
        agent: the agent that answers in this handle's turns and contexts; None: the session's own agent.
    """

    def __init__(self, transport: Transport, ref: SessionRef, agent: str | None = None) -> None:
        self._transport, self.ref, self._agent = transport, ref, agent
        self._path = ("v1", "sessions", ref.id)
        self._query = {"user_id": ref.user_id}

    def __repr__(self) -> str:
        return f"<session {self.ref.id!r} of user {self.ref.user_id!r}>"

    @property
    def id(self) -> str:
        """The session's id."""
        return self.ref.id

    @property
    def user_id(self) -> str:
        """The session's owner."""
        return self.ref.user_id

    @property
    def artifacts(self) -> RemoteArtifacts:
        """Artifacts of the session, and those that the user's sessions share. Methods: save, get, load, list, versions, delete."""
        return RemoteArtifacts(self._transport, self._path, self.ref.user_id)

    @property
    def facts(self) -> RemoteFacts:
        """The user's statements that prompts keep: `await session.facts()` lists them. Methods: pin, drop, reset."""
        return RemoteFacts(self._transport, self._path, self._query, self._agent)

    def records(self, namespace: str | Sequence[str]) -> RemoteRecords:
        """Return an object that reads and writes the session's records in a namespace. The records are deleted with the session."""
        return RemoteRecords(self._transport, self.ref, namespace)

    @property
    def state(self) -> RemoteState:
        """State of the session, including shared scopes: `await session.state["user:theme"]`."""
        return RemoteState(self._transport, {"session_id": self.ref.id, "user_id": self.ref.user_id})

    # -- reading -----------------------------------------------------------------

    async def info(self) -> Session:
        """Return the session's fields without its log. Raises `SessionNotFound` if the session does not exist."""
        return await self._call("GET", "info", parse=parse_session)

    async def messages(self) -> list[dict[str, Any]]:
        """Return the live path as Chat Completions messages."""
        return [to_chat_message(entry.message) for entry in await self.entries() if not entry.is_note]

    async def export(self) -> list[dict[str, Any]]:
        """Return the messages of the live path, with the fields that Holdfast adds to each."""
        return [to_entry_json(entry) for entry in await self.entries()]

    @like(SessionHandle.history)
    async def history(self, given: Arguments) -> list[dict[str, Any]]:
        """Return the messages of the user and the assistant, without tool and system messages: as `voice` records, or `plain`."""
        found = await self._call("GET", "history", query=given, parse=decode)
        records: list[dict[str, Any]] = found["contents" if given["view"] == "voice" else "messages"]
        return records

    @like(SessionLog.entries)
    async def entries(self, given: Arguments) -> tuple[Entry, ...]:
        """Return entries of the log, notes included, in pages of `CONNECT_PAGE`. The arguments and errors are those of `SessionHandle.entries`.

        `unit` and `total` of the entries are -1, and `digest` is empty, because the server does not return them.
        """
        start, limit, stop, descending = (given[name] for name in ("start", "limit", "stop", "descending"))
        for name in ("start", "limit", "stop"):
            if given[name] is not None:
                check_whole(given[name], name)
        query = {"retired": given["retired"], "order": "desc" if descending else "asc"}
        found: list[Entry] = []
        after = stop if descending else start - 1 if start else None
        more = limit != 0
        while more:
            query |= {"limit": CONNECT_PAGE if limit is None else min(CONNECT_PAGE, limit - len(found)), "after": after}
            page = await self._call("GET", "messages", query=query, parse=parse_entries)
            fits = [one for one in page.items if one.seq >= start and (stop is None or one.seq < stop)]
            found += fits
            more = page.has_more and len(fits) == len(page.items) and len(found) != limit
            after = page.items[-1].seq if page.items else None
        return tuple(found)

    @like(SessionHandle.context)
    async def context(self, given: Arguments) -> Context:
        """Build a working set on the server, without calling a model. The arguments and errors are those of `SessionHandle.context`."""
        options, tools = given.pop("options"), [*map(dict, given["tools"])] or None
        body = leave_out(None, {**given, "tools": tools, "agent": self._agent, **options})
        return await self._call("POST", "context", body=body, repeatable=True, parse=parse_as(Context))

    @like(SessionHandle.explain)
    async def explain(self, given: Arguments) -> Explanation:
        """Explain if messages are in the prompt whole, in part or not at all. Arguments and errors: `SessionHandle.explain`."""
        text = given.pop("text")
        query = {**given, "q": text, "limit": None if text is None else given["limit"], "agent": self._agent}
        return await self._call("GET", "explain", query=query, parse=parse_as(Explanation))

    @like(SessionHandle.calls)
    async def calls(self, given: Arguments) -> CallPage:
        """Return a page of the session's recorded model calls, newest first. The arguments and errors are those of `SessionHandle.calls`."""
        page = await self._call("GET", "calls", query=name_order(given), parse=_parse_calls)
        return CallPage(page.items, page.has_more)

    @like(SessionHandle.prompt)
    async def prompt(self, given: Arguments) -> PromptView:
        """Show the prompt of a model call. The arguments and errors are those of `SessionHandle.prompt`."""
        call_id = given.pop("call_id")
        query = {**given, "agent": self._agent}
        return await self._call("GET", "calls", call_id, query=query, parse=parse_as(PromptView))

    # -- writing -----------------------------------------------------------------

    @like(SessionLog.append)
    async def append(self, given: Arguments) -> Appended:
        """Write messages to the end of the log, in one transaction with what else is given.

        The arguments and errors are those of `SessionHandle.append`. Without an `idempotency_key`, the call makes one, so that its
        retries do not write twice. `fingerprint` has no effect: the server compares the contents of requests with the same key.
        """
        made, note, copy_of = to_wire(given.pop("messages")), given.pop("note"), given.pop("copy_of")
        if note is not None:
            made.append(to_log_json(make_note(note)))
            copy_of = [*copy_of, None] if copy_of else ()
        delta, key = to_state_delta(given.pop("state")), given.pop("idempotency_key")
        del given["fingerprint"]
        return to_appended(await self._append(made, delta=delta, key=key, copy_of=copy_of, **given))

    async def pop(self) -> Entry | None:
        """Take the newest message off the live path and return it; None if there is none. The log keeps it.

        Concurrent calls return different messages. Raises `SessionNotFound` if the session does not exist.
        """
        for _ in range(POP_TRIES):
            newest, version = await self._find_newest()
            if newest is None:
                return None
            try:
                await self._append([], retire_from=newest.seq, expect=version)
            except StaleSession:
                continue
            return newest
        raise Conflict(f"session {self.ref.id!r} is being written to constantly: try again")

    async def _find_newest(self) -> tuple[Entry | None, int]:
        """Return the newest message that is not a note, and the version of the session."""
        after = None
        while True:
            query = {"limit": _NEWEST, "order": "desc", "after": after}
            page = await self._call("GET", "messages", query=query, parse=parse_entries)
            newest = next((one for one in page.items if not one.is_note), None)
            if newest is not None or not page.has_more:
                return newest, page.fields["version"]
            after = page.items[-1].seq

    async def clear(self) -> Session:
        """Take all messages off the live path, and return the session. Its fields and its state stay.

        Raises:
            SessionNotFound: the session does not exist.
        """
        return to_appended(await self._append([], retire_from=0)).session

    @like(SessionLog.replace)
    async def replace(self, given: Arguments) -> Entry:
        """Replace a message of the live path, and return its new entry. The arguments and errors are those of `SessionHandle.replace`."""
        check_whole(given["seq"], "seq")
        check_flag(given["erase"], "erase")
        made = to_wire(given["message"])
        if len(made) != 1:
            raise InvalidRequest("message must be one message", param="message")
        body = {"message": made[0], "erase": given["erase"]}
        return await self._call("PUT", "messages", str(given["seq"]), body=body, parse=parse_entry)

    @like(SessionLog.annotate)
    async def annotate(self, given: Arguments) -> Entry:
        """Set a message's pin, its importance, or the upstreams that must not receive it; see `SessionHandle.annotate`."""
        seq, names = given.pop("seq"), given["refused_by"]
        check_whole(seq, "seq")
        body = leave_out(UNSET, {**given, "refused_by": None if names is None else [*names]})
        return await self._call("PATCH", "messages", str(seq), body=body, parse=parse_entry)

    @like(SessionHandle.update)
    async def update(self, given: Arguments) -> Session:
        """Change fields of the session. The arguments and errors are those of `SessionHandle.update`."""
        return await self._call("PATCH", body=to_session_body(leave_out(UNSET, given)), parse=parse_session)

    @like(SessionHandle.rewind)
    async def rewind(self, given: Arguments) -> Session:
        """Go back to the end of a turn. Later messages are retired, not lost. Raises the errors of `SessionHandle.rewind`."""
        headers = match(given.pop("expect"))
        return await self._call("POST", "rewind", body=given, headers=headers, parse=parse_session)

    @like(SessionHandle.fork)
    async def fork(self, given: Arguments) -> RemoteSession:
        """Create a session that continues from the end of a turn. The original is not changed. Raises the errors of `SessionHandle.fork`."""
        made = await self._call("POST", "fork", body=given, parse=parse_session)
        return RemoteSession(self._transport, made.ref, self._agent)

    # -- compactions -------------------------------------------------------------

    @like(SessionHandle.compact)
    async def compact(self, given: Arguments) -> StoredCompaction | NewCompaction | None:
        """Summarize the older part of the session now. The arguments and errors are those of `SessionHandle.compact`.

        The summary is written by a model of the server, which may take longer than the `timeout` of the connection. If it does, the
        server goes on, and `compactions` shows the result.
        """
        body = leave_out(None, {"agent": self._agent, **given.pop("options"), **given})
        try:
            return await self._call("POST", "compactions", body=body, parse=parse_with(to_compaction))
        except ServerError as exc:
            if exc.code != "nothing_to_compact":
                raise
        return None

    async def compactions(self) -> tuple[StoredCompaction, ...]:
        """Return all summaries (compactions) of the session in order: current and former ones, and failed attempts."""
        return await self._transport.read_all(*self._path, "compactions", query=self._query, parse=_parse_compactions)

    async def drop_compaction(self, compaction_id: int) -> StoredCompaction:
        """Undo a compaction. The errors are those of `SessionHandle.drop_compaction`."""
        check_whole(compaction_id, "compaction_id")
        return await self._call("DELETE", "compactions", str(compaction_id), parse=parse_with(to_stored_compaction))

    # -- voice -------------------------------------------------------------------

    @like(SessionHandle.interrupt)
    async def interrupt(self, given: Arguments) -> Interruption:
        """Stop a running turn, and keep only the part of the last reply that the user heard.

        The arguments and errors are those of `SessionHandle.interrupt`.
        """
        parse_heard(given)
        body = {**leave_out(None, given), "return_session": True}
        return await self._call("POST", "interrupt", body=body, parse=parse_with(to_interruption))

    @like(SessionHandle.speak)
    async def speak(self, given: Arguments) -> SpeechResult:
        """Write a message of the agent to the log, as a turn of its own. The arguments and errors are those of `SessionHandle.speak`."""
        Speech(**given)  # refuses what is not valid
        body = {**given, "agent": self._agent, "return_session": True}
        return await self._call("POST", "speak", body=body, parse=parse_with(to_speech))

    # -- the whole session ---------------------------------------------------------

    async def close(self) -> Session:
        """End the session and return it. The next message reopens it. Raises `SessionNotFound` if the session does not exist."""
        return await self._call("POST", "close", repeatable=True, parse=parse_session)

    async def delete(self) -> bool:
        """Delete the session and everything that belongs to it. Return True if there was one."""
        try:
            await self._call("DELETE", parse=decode)
        except SessionNotFound:
            return False
        return True

    # -- turns -------------------------------------------------------------------

    @like(SessionHandle.turn)
    def turn(self, given: Arguments) -> RemoteTurn:
        """Return a context manager for a turn in which your program calls the model.

        `messages` are written to the log before the block begins. Messages that are added to the turn are written before the block
        ends. The turn blocks no other client: if another one writes to the session meanwhile, the next write raises `StaleSession`.

        The arguments are those of `SessionHandle.turn`. `session_queue` says what happens if a turn of the session is running on the
        server, for example one of the gateway. Without an `idempotency_key`, the call makes one.

        Raises:
            TypeError: a keyword argument is not a field of a model call.
            SessionBusy: another turn is running on the server, and this one was refused or has waited too long.
            StaleSession: another client has written to the log during the turn.
        """
        messages, interrupt, key = given.pop("messages"), given.pop("interrupt"), given.pop("idempotency_key")
        request = given.pop("body")

        def make() -> Steps:
            check_keywords(request)
            options = leave_out(None, {**given, "agent": self._agent, "request": request or None})
            opening: dict[str, Any] = {"messages": to_wire(() if messages is None else messages)}
            if interrupt is not None:
                opening["interrupt"] = _to_object(interrupt, "interrupt")
            return Steps(self._call, self._append, opening, options, key)

        return RemoteTurn(make)

    @like(SessionHandle.turn)
    async def begin_turn(self, given: Arguments) -> OpenRemoteTurn:
        """Open a turn without a block. The parameters and errors are those of `turn`.

        Call `end` or `abort` of the returned turn. A turn that is not ended blocks nothing; messages that were added to it since its
        last request are lost.
        """
        return await self.turn(**given.pop("body"), **given).begin()

    async def send(
        self,
        messages: Sendable | Sequence[Sendable],
        *,
        session_queue: QueueMode | None = None,
        interrupt: Mapping[str, Any] | None = None,
        strategy: str | None = None,
        budget: int | None = None,
        recall: str | bool | None = None,
        idempotency_key: str | None = None,
        **body: Any,
    ) -> dict[str, Any]:
        """Run a whole turn with the server's model and tools, and return the completion in Chat Completions format.

        Args:
            messages, session_queue, interrupt, strategy, budget, recall: as in `turn`.
            idempotency_key: a repeated call with this key returns the same reply; None: a new key.
            body: other fields of the model call.

        Raises:
            ModelError: the model did not answer; the user's message is in the log.
            SessionBusy, TurnInterrupted, TurnLost: as in `SessionHandle.send`.
        """
        given: dict[str, Any] = {
            "model": self._agent,
            "session_id": self.ref.id,
            **self._query,
            "messages": to_wire(messages),
        }
        given |= {"session_queue": session_queue, "interrupt": interrupt, "strategy": strategy, "budget": budget}
        sent = leave_out(None, {**given, "recall": recall, **body})
        headers = make_key(idempotency_key)
        return await self._transport.call("POST", "v1", "chat", "completions", body=sent, headers=headers, parse=decode)

    # -- requests ----------------------------------------------------------------

    async def _append(
        self,
        messages: list[dict[str, Any]],
        *,
        delta: Mapping[str, Change] | None = None,
        expect: int | None = None,
        key: str | None = None,
        return_session: bool = True,
        records: Sequence[RecordChange] = (),
        copy_of: Sequence[int | None] = (),
        **more: Any,
    ) -> Written:
        """Append messages. `more` are `expect_log`, `retire_from` and `usage` of the REST API."""
        given: dict[str, Any] = {"messages": messages, "return_session": return_session, **more}
        given |= {"changes": to_operations(delta or {}) or None, "copy_of": [*copy_of] or None}
        given |= {"records": to_record_operations(records) or None}
        headers = {**make_key(key), **match(expect)}
        return await self._call("POST", "messages", body=leave_out(None, given), headers=headers, parse=parse_written)

    async def _call(
        self,
        method: str,
        *path: str,
        parse: Callable[[bytes], T],
        query: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> T:
        """Send a request for this session. The other arguments are those of `Transport.call`."""
        query = {**self._query, **(query or {})}
        return await self._transport.call(method, *self._path, *path, parse=parse, query=query, **options)


def _to_object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must be an object, not {type(value).__name__}", param=name)
    return dict(value)
