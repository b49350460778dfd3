"""The handle of one session on a server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.context.dialects import Dialect
from holdfast.domain.interruptions import parse_heard
from holdfast.domain.messages import Message
from holdfast.domain.reconcile import Mode
from holdfast.domain.record import RecordChange
from holdfast.domain.session import Entry, NewCompaction, Session, SessionRef, StoredCompaction
from holdfast.domain.state import Change
from holdfast.errors import Conflict, InvalidRequest, ServerError, SessionNotFound, StaleSession
from holdfast.limits import CONNECT_PAGE
from holdfast.numbers import check_whole
from holdfast.remote.artifacts import RemoteArtifacts
from holdfast.remote.objects import (
    TurnPrompt,
    Written,
    decode,
    leave_out_unset,
    parse_calls,
    parse_compaction,
    parse_compactions,
    parse_context,
    parse_entries,
    parse_entry,
    parse_interruption,
    parse_prompt,
    parse_prompt_view,
    parse_session,
    parse_speech,
    parse_stored_compaction,
    parse_written,
    to_appended,
)
from holdfast.remote.records import RemoteRecords, to_record_operations
from holdfast.remote.state import RemoteFacts, RemoteState, to_operations
from holdfast.remote.transport import KEY, Transport
from holdfast.remote.turns import Flush, OpenRemoteTurn, RemoteTurn
from holdfast.sessions.explanation import Explanation
from holdfast.sessions.fields import check_session_fields, to_state_delta
from holdfast.sessions.interruption import Interruption
from holdfast.sessions.message_explanations import MATCHES
from holdfast.sessions.model_calls import CallPage
from holdfast.sessions.preview_objects import Context
from holdfast.sessions.prompt_views import PromptView
from holdfast.sessions.speech import Priority, Speech, SpeechResult, SpeechSource
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


def to_wire(given: Sendable | Sequence[Sendable]) -> list[dict[str, Any]]:
    """Return messages as the REST API takes them. Raises `InvalidMessage` if one is not valid."""
    messages, own = parse_sendable(given)
    return [{**to_log_json(message), **fields} for message, fields in zip(messages, own, strict=True)]


def to_log_json(message: Message) -> dict[str, Any]:
    """Return a message as an append takes it, with its origin."""
    chat = to_chat_message(message)
    return chat if message.origin is None else {**chat, "origin": message.origin}


def make_key() -> dict[str, str]:
    """Return a header with a new idempotency key, so that a retried write is not done twice."""
    return {KEY: uuid.uuid4().hex}


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

    async def history(self, *, view: Literal["voice", "plain"] = "voice") -> list[dict[str, Any]]:
        """Return the messages of the user and the assistant, without tool and system messages.

        Args:
            view: `voice` returns voice records, `plain` only role and content.
        """
        found = await self._call("GET", "history", query={"view": view}, parse=decode)
        records: list[dict[str, Any]] = found["contents" if view == "voice" else "messages"]
        return records

    async def entries(
        self,
        start: int = 0,
        limit: int | None = None,
        *,
        stop: int | None = None,
        descending: bool = False,
        retired: bool = False,
    ) -> tuple[Entry, ...]:
        """Return entries of the log, notes included, in pages of `CONNECT_PAGE`. The arguments and errors are those of `SessionHandle.entries`.

        `unit` and `total` of the entries are -1, and `digest` is empty, because the server does not return them.
        """
        for name, value in (("start", start), ("limit", limit), ("stop", stop)):
            if value is not None:
                check_whole(value, name)
        found: list[Entry] = []
        after = stop if descending else start - 1 if start else None
        more = limit != 0
        while more:
            size = CONNECT_PAGE if limit is None else min(CONNECT_PAGE, limit - len(found))
            query = {"limit": size, "after": after, "retired": retired, "order": "desc" if descending else "asc"}
            page, more, _ = await self._call("GET", "messages", query=query, parse=parse_entries)
            fits = [one for one in page if one.seq >= start and (stop is None or one.seq < stop)]
            found += fits
            more = more and len(fits) == len(page) and len(found) != limit
            after = page[-1].seq if page else None
        return tuple(found)

    async def context(
        self,
        strategy: str | None = None,
        *,
        model: str | None = None,
        dialect: Dialect = "openai",
        at_turn: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        touch: bool = True,
        save: bool = False,
        **options: Any,
    ) -> Context:
        """Build a working set on the server, without calling a model. The arguments and errors are those of `SessionHandle.context`."""
        given: dict[str, Any] = {
            "strategy": strategy,
            "model": model,
            "dialect": dialect,
            "at_turn": at_turn,
            "agent": self._agent,
        }
        given |= {"tools": [*map(dict, tools)] or None, "touch": touch, "save": save, "details": True, **options}
        body = {name: value for name, value in given.items() if value is not None}
        return await self._call("POST", "context", body=body, repeatable=True, parse=parse_context)

    async def explain(
        self,
        *,
        seq: int | None = None,
        text: str | None = None,
        turn: int | None = None,
        before: int | None = None,
        limit: int = MATCHES,
        strategy: str | None = None,
        budget: int | None = None,
    ) -> Explanation:
        """Explain if messages are in the prompt whole, in part or not at all. Arguments and errors: `SessionHandle.explain`."""
        query = {"seq": seq, "q": text, "turn": turn, "before": before, "limit": None if text is None else limit}
        query |= {"strategy": strategy, "budget": budget}
        parse = partial(msgspec.json.decode, type=Explanation)
        return await self._call("GET", "explain", query={**query, "agent": self._agent}, parse=parse)

    async def calls(self, limit: int = 20, *, after: str | None = None, descending: bool = True) -> CallPage:
        """Return a page of the session's recorded model calls, newest first. The arguments and errors are those of `SessionHandle.calls`."""
        query = {"limit": limit, "after": after, "order": "desc" if descending else "asc"}
        return await self._call("GET", "calls", query=query, parse=parse_calls)

    async def prompt(
        self,
        call_id: str = "next",
        *,
        strategy: str | None = None,
        budget: int | None = None,
        dialect: Dialect | None = None,
        log_limit: int = 0,
        log_after: int | None = None,
        rebuild: bool = False,
    ) -> PromptView:
        """Show the prompt of a model call. The arguments and errors are those of `SessionHandle.prompt`."""
        query = {"strategy": strategy, "budget": budget, "dialect": dialect, "agent": self._agent}
        query |= {"log_limit": log_limit, "log_after": log_after, "rebuild": rebuild}
        return await self._call("GET", "calls", call_id, query=query, parse=parse_prompt_view)

    # -- writing -----------------------------------------------------------------

    async def append(
        self,
        messages: Sendable | Sequence[Sendable] = (),
        *,
        note: Any = None,
        expect: int | None = None,
        expect_log: str | None = None,
        retire_from: int | None = None,
        state: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        fingerprint: bytes = b"",
        records: Sequence[RecordChange] = (),
        copy_of: Sequence[int | None] = (),
    ) -> Appended:
        """Write messages to the end of the log, in one transaction with what else is given.

        The arguments and errors are those of `SessionHandle.append`. Without an `idempotency_key`, the call makes one, so that its
        retries do not write twice. `fingerprint` has no effect: the server compares the contents of requests with the same key.
        """
        del fingerprint
        made = to_wire(messages)
        if note is not None:
            made.append(to_log_json(make_note(note)))
            copy_of = [*copy_of, None] if copy_of else ()
        written = await self._append(
            made,
            delta=to_state_delta(state),
            expect=expect,
            expect_log=expect_log,
            retire_from=retire_from,
            key=idempotency_key,
            records=records,
            copy_of=copy_of,
        )
        return to_appended(written)

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
        after, more, newest, version = None, True, None, 0
        while more and newest is None:
            query = {"limit": _NEWEST, "order": "desc", "after": after}
            page, more, version = await self._call("GET", "messages", query=query, parse=parse_entries)
            newest = next((one for one in page if not one.is_note), None)
            after = page[-1].seq if page else None
        return newest, version

    async def clear(self) -> Session:
        """Take all messages off the live path, and return the session. Its fields and its state stay.

        Raises:
            SessionNotFound: the session does not exist.
        """
        return to_appended(await self._append([], retire_from=0)).session

    async def replace(self, seq: int, message: Sendable, *, erase: bool = False) -> Entry:
        """Replace a message of the live path, and return its new entry. The arguments and errors are those of `SessionHandle.replace`."""
        check_whole(seq, "seq")
        check_flag(erase, "erase")
        made = to_wire(message)
        if len(made) != 1:
            raise InvalidRequest("message must be one message", param="message")
        body = {"message": made[0], "erase": erase}
        return await self._call("PUT", "messages", str(seq), body=body, parse=parse_entry)

    async def annotate(
        self,
        seq: int,
        *,
        pinned: bool | None = None,
        importance: float | None | UnsetType = UNSET,
        refused_by: Collection[str] | None = None,
    ) -> Entry:
        """Set a message's pin, its importance, or the upstreams that must not receive it; see `SessionHandle.annotate`."""
        check_whole(seq, "seq")
        names = None if refused_by is None else [*refused_by]
        body = {**leave_out_unset(importance=importance), "pinned": pinned, "refused_by": names}
        return await self._call("PATCH", "messages", str(seq), body=body, parse=parse_entry)

    async def update(
        self,
        *,
        agent: str | None | UnsetType = UNSET,
        system_messages: str | Sequence[Sendable] | None | UnsetType = UNSET,
        metadata: Mapping[str, Any] | None | UnsetType = UNSET,
        state: Mapping[str, Any] | None | UnsetType = UNSET,
        ttl: int | None | UnsetType = UNSET,
    ) -> Session:
        """Change fields of the session. The arguments and errors are those of `SessionHandle.update`."""
        given = leave_out_unset(agent=agent, system_messages=system_messages, metadata=metadata, state=state, ttl=ttl)
        fields = check_session_fields(given)
        if "system_messages" in given:
            given["system_messages"] = [to_chat_message(one) for one in fields["system_messages"]]
        return await self._call("PATCH", body=given, parse=parse_session)

    async def rewind(self, at_turn: int, *, expect: int | None = None) -> Session:
        """Go back to the end of a turn. Later messages are retired, not lost. Raises the errors of `SessionHandle.rewind`."""
        headers = _match(expect)
        return await self._call("POST", "rewind", body={"at_turn": at_turn}, headers=headers, parse=parse_session)

    async def fork(
        self,
        at_turn: int | None = None,
        id: str | None = None,  # noqa: A002 - part of the public API
    ) -> RemoteSession:
        """Create a session that continues from the end of a turn. The original is not changed. Raises the errors of `SessionHandle.fork`."""
        body = {"at_turn": at_turn, "id": id}
        made = await self._call("POST", "fork", body=body, parse=parse_session)
        return RemoteSession(self._transport, made.ref, self._agent)

    # -- compactions -------------------------------------------------------------

    async def compact(
        self, *, preview: bool = False, wait: bool = True, **options: Any
    ) -> StoredCompaction | NewCompaction | None:
        """Summarize the older part of the session now. The arguments and errors are those of `SessionHandle.compact`.

        The summary is written by a model of the server, which may take longer than the `timeout` of the connection. If it does, the
        server goes on, and `compactions` shows the result.
        """
        body = {"preview": preview, "wait": wait, "agent": self._agent, **options}
        given = {name: value for name, value in body.items() if value is not None}
        try:
            return await self._call("POST", "compactions", body=given, parse=parse_compaction)
        except ServerError as exc:
            if exc.code != "nothing_to_compact":
                raise
        return None

    async def compactions(self) -> tuple[StoredCompaction, ...]:
        """Return all summaries (compactions) of the session in order: current and former ones, and failed attempts."""
        found: list[StoredCompaction] = []
        more = True
        while more:
            query = {"limit": CONNECT_PAGE, "after": found[-1].id if found else None}
            page, more = await self._call("GET", "compactions", query=query, parse=parse_compactions)
            found += page
        return tuple(found)

    async def drop_compaction(self, compaction_id: int) -> StoredCompaction:
        """Undo a compaction. The errors are those of `SessionHandle.drop_compaction`."""
        check_whole(compaction_id, "compaction_id")
        return await self._call("DELETE", "compactions", str(compaction_id), parse=parse_stored_compaction)

    # -- voice -------------------------------------------------------------------

    async def interrupt(
        self,
        content: str | None = None,
        *,
        chars: int | None = None,
        ms: int | None = None,
        total_ms: int | None = None,
        timestamp: int | None = None,
        turn_id: int | None = None,
    ) -> Interruption:
        """Stop a running turn, and keep only the part of the last reply that the user heard.

        The arguments and errors are those of `SessionHandle.interrupt`.
        """
        report = {"content": content, "chars": chars, "ms": ms, "total_ms": total_ms}
        report |= {"timestamp": timestamp, "turn_id": turn_id}
        parse_heard(report)
        body = {name: value for name, value in report.items() if value is not None}
        return await self._call("POST", "interrupt", body={**body, "return_session": True}, parse=parse_interruption)

    async def speak(
        self,
        text: str | None = None,
        *,
        priority: Priority = "INTERRUPT",
        source: SpeechSource = "command",
        interruptable: bool = True,
    ) -> SpeechResult:
        """Write a message of the agent to the log, as a turn of its own. The arguments and errors are those of `SessionHandle.speak`."""
        speech = Speech(text=text, priority=priority, source=source, interruptable=interruptable)
        body = {**msgspec.structs.asdict(speech), "agent": self._agent, "return_session": True}
        return await self._call("POST", "speak", body=body, parse=parse_speech)

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

    def turn(
        self,
        messages: Sendable | Sequence[Sendable] | None = None,
        *,
        mode: Mode = "auto",
        session_queue: QueueMode | None = None,
        interrupt: Mapping[str, Any] | None = None,
        strategy: str | None = None,
        budget: int | None = None,
        recall: str | bool | None = None,
        idempotency_key: str | None = None,
        **body: Any,
    ) -> RemoteTurn:
        """Return a context manager for a turn in which your program calls the model.

        `messages` are written to the log before the block begins. Messages that are added to the turn are written before the block
        ends. The turn blocks no other client: if another one writes to the session meanwhile, the next write raises `StaleSession`.

        Args:
            messages, mode, interrupt, strategy, budget, recall, body: as in `SessionHandle.turn`.
            session_queue: what happens if a turn of the session is running on the server, for example one of the gateway.
            idempotency_key: if a turn of the session used this key before, `messages` are not written again; None: a new key.

        Raises:
            TypeError: a keyword argument is not a field of a model call.
            SessionBusy: another turn is running on the server, and this one was refused or has waited too long.
            StaleSession: another client has written to the log during the turn.
        """

        def make() -> _Steps:
            check_keywords(body)
            given: dict[str, Any] = {
                "mode": mode,
                "session_queue": session_queue,
                "strategy": strategy,
                "budget": budget,
            }
            given |= {"recall": recall, "agent": self._agent, "request": body or None}
            plain = {name: value for name, value in given.items() if value is not None}
            opening: dict[str, Any] = {"messages": to_wire(() if messages is None else messages)}
            if interrupt is not None:
                opening["interrupt"] = _to_object(interrupt, "interrupt")
            return _Steps(self, opening, plain, idempotency_key)

        return RemoteTurn(make)

    async def begin_turn(self, messages: Sendable | Sequence[Sendable] | None = None, **options: Any) -> OpenRemoteTurn:
        """Open a turn without a block. The parameters and errors are those of `turn`.

        Call `end` or `abort` of the returned turn. A turn that is not ended blocks nothing; messages that were added to it since its
        last request are lost.
        """
        return await self.turn(messages, **options).begin()

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
            messages, session_queue, interrupt, strategy, budget, recall: as in `turn`. All other arguments are further fields of the model
                call.
            idempotency_key: a repeated call with this key returns the same reply; None: a new key.

        Raises:
            ModelError: the model did not answer; the user's message is in the log.
            SessionBusy, TurnInterrupted, TurnLost: as in `SessionHandle.send`.
        """
        given: dict[str, Any] = {
            "session_id": self.ref.id,
            "session_queue": session_queue,
            "interrupt": interrupt,
            "strategy": strategy,
        }
        given |= {"budget": budget, "recall": recall, "messages": to_wire(messages), **self._query, **body}
        if self._agent is not None:
            given.setdefault("model", self._agent)
        sent = {name: value for name, value in given.items() if value is not None}
        headers = make_key() if idempotency_key is None else {KEY: idempotency_key}
        path = ("v1", "chat", "completions")
        return await self._transport.call("POST", *path, body=sent, headers=headers, parse=decode)

    # -- requests ----------------------------------------------------------------

    async def _append(
        self,
        messages: list[dict[str, Any]],
        *,
        delta: Mapping[str, Change] | None = None,
        expect: int | None = None,
        expect_log: str | None = None,
        retire_from: int | None = None,
        key: str | None = None,
        usage: Any = None,
        return_session: bool = True,
        records: Sequence[RecordChange] = (),
        copy_of: Sequence[int | None] = (),
    ) -> Written:
        given: dict[str, Any] = {"messages": messages, "expect_log": expect_log, "retire_from": retire_from}
        given |= {"changes": to_operations(delta or {}) or None, "return_session": return_session, "usage": usage}
        given |= {"records": to_record_operations(records) or None, "copy_of": [*copy_of] or None}
        body = {name: value for name, value in given.items() if value is not None}
        headers = {**(make_key() if key is None else {KEY: key}), **_match(expect)}
        return await self._call("POST", "messages", body=body, headers=headers, parse=parse_written)

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


class _Steps(NamedTuple):
    """The requests of a turn; see `holdfast.remote.turns.Steps`."""

    session: RemoteSession
    opening: dict[str, Any]
    options: dict[str, Any]
    key: str | None

    async def begin(self) -> TurnPrompt:
        headers = make_key() if self.key is None else {KEY: self.key}
        return await self._post({**self.options, **self.opening}, headers=headers)

    async def build(self) -> TurnPrompt:
        return await self._post(self.options, repeatable=True)

    async def write(self, flush: Flush, log_marker: str) -> Written:
        sent = [to_log_json(message) for message in flush.messages]
        more: dict[str, Any] = {"expect_log": log_marker, "usage": flush.usage, "return_session": False}
        return await self.session._append(sent, delta=flush.delta, key=flush.key, **more)  # noqa: SLF001 - a part of it

    async def _post(self, body: dict[str, Any], **options: Any) -> TurnPrompt:
        return await self.session._call("POST", "turns", body=body, parse=parse_prompt, **options)  # noqa: SLF001 - a part of it


def _match(expect: int | None) -> dict[str, str]:
    if expect is None:
        return {}
    check_whole(expect, "expect")
    return {"if-match": f'"{expect}"'}


def _to_object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must be an object, not {type(value).__name__}", param=name)
    return dict(value)
