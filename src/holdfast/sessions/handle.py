"""The handle of one session, for users of the library.

The live path of a session is the list of its messages that are in force, in order. Messages that are taken off the live path, for example
by an edit, stay in the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.agents import Responder
from holdfast.artifacts.service import SessionArtifacts
from holdfast.context.dialects import Dialect, check_dialect
from holdfast.domain.interruptions import HEARD, parse_heard
from holdfast.domain.messages import Message
from holdfast.domain.session import NewCompaction, Session, SessionRef, StoredCompaction
from holdfast.engine.engine import Engine
from holdfast.engine.session_lock import QueueMode, check_mode
from holdfast.engine.session_removal import remove_session
from holdfast.errors import InvalidRequest
from holdfast.log.align import Mode
from holdfast.sessions.contexts import Context, preview_context
from holdfast.sessions.facts import SessionFacts
from holdfast.sessions.fields import check_session_fields
from holdfast.sessions.forks import fork_session, rewind_session
from holdfast.sessions.interruption import Interruption, interrupt_reply
from holdfast.sessions.prompt_lookup import PromptRequest
from holdfast.sessions.prompt_views import PromptedSession
from holdfast.sessions.records import Records
from holdfast.sessions.session_log import SessionLog, read_history
from holdfast.sessions.speech import Priority, Speech, SpeechResult, SpeechSource, deliver_speech
from holdfast.sessions.state import SessionState
from holdfast.signatures import Arguments, like
from holdfast.stores.checks import check_kind
from holdfast.stores.sessions import SessionPatch
from holdfast.stores.verify import verify
from holdfast.turns.interruptions import SentMessages, separate_heard
from holdfast.turns.library_turn import LibraryTurn, OpenTurn
from holdfast.turns.prompt import prepare_request
from holdfast.turns.respond import collect_reply
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.wire.openai import split_system, to_entry_json
from holdfast.wire.request_fields import check_keywords
from holdfast.wire.sendable import Sendable, check_text, parse_sendable, refuse_notes
from holdfast.wire.voice import make_attributed_records, make_plain_records

_MODES: Final[tuple[str, ...]] = get_args(Mode)


class SessionHandle(SessionLog, PromptedSession):
    """One session of a `Holdfast`. The handle caches nothing: every method reads or writes the store."""

    def __init__(
        self,
        engine: Engine,
        ref: SessionRef,
        responder: Responder,
        identity: str | None = None,
        *,
        is_chosen: bool = False,
    ) -> None:
        self._opened_engine, self.ref, self.responder, self._identity = engine, ref, responder, identity
        self._is_chosen = is_chosen

    @property
    def _engine(self) -> Engine:
        return self._opened_engine.check_loop()

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
    def artifacts(self) -> SessionArtifacts:
        """Files of the session, and files that all of the user's sessions share. Methods: save, load, list, versions, delete."""
        return SessionArtifacts(self._engine.artifacts, self.ref)

    @property
    def state(self) -> SessionState:
        """State of the session, including shared scopes: `await session.state["user:theme"]`; see `holdfast.sessions.state`."""
        return SessionState(self._engine, self.ref)

    def records(self, namespace: str | Sequence[str]) -> Records:
        """Return an object that reads and writes the session's records in a namespace. The records are deleted with the session."""
        return Records(self._engine, self.ref, namespace, identity=self._identity)

    @property
    def facts(self) -> SessionFacts:
        """The user's statements that prompts keep: `await session.facts()` lists them. Methods: pin, drop, reset."""
        return SessionFacts(self._engine, self.ref, self.responder)

    async def info(self) -> Session:
        """Return the session without its log: version, counts, usage, state. Raises `SessionNotFound` if the session does not exist."""
        return await self._engine.store.get(self.ref)

    async def update(
        self,
        *,
        agent: str | None | UnsetType = UNSET,
        system_messages: str | Sequence[Sendable] | None | UnsetType = UNSET,
        metadata: Mapping[str, Any] | None | UnsetType = UNSET,
        state: Mapping[str, Any] | None | UnsetType = UNSET,
        ttl: int | None | UnsetType = UNSET,
    ) -> Session:
        """Change fields of the session. Fields that are not given stay unchanged.

        Args:
            agent: the agent that answers.
            system_messages: replaces the system prompt: a text, or a list of texts, dicts or messages.
            metadata: replaces the whole metadata.
            state: keys to set, with their values; the value None deletes a key.
            ttl: idle time in milliseconds after which the session ends; 0: no limit; None: the configured time.

        Raises:
            InvalidRequest: a value has the wrong type or range; nothing is written.
            SessionNotFound: there is no such session.
        """
        given = {"agent": agent, "system_messages": system_messages, "metadata": metadata, "state": state, "ttl": ttl}
        patch = SessionPatch(**check_session_fields(given))
        if isinstance(agent, str):
            self._engine.roster.find_responder(agent=agent)  # refuses an unknown agent
        return await self._engine.store.update(self.ref, patch, timestamp=self._engine.clock())

    async def context(
        self,
        /,
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
        """Return the messages that a model would get now (the working set), without calling a model.

        Args:
            strategy: name of the strategy; None: the agent's.
            model: the model whose context window and tokenizer apply; None: the agent's.
            dialect: the format of the messages: `openai`, `anthropic` or `gemini`.
            at_turn: build the working set that the model saw in this turn; None: from the current log.
            tools: tool schemas that will be sent too.
            touch: True: the call counts as use of the session, which delays its expiry. With `at_turn`, it never counts.
            save: True if you send this prompt to a model, outside of a turn. The next prompt then continues from this one: building it
                reads only new messages, and its beginning stays the same until old messages have to be left out.
            options: settings of the strategy, for example `budget=8000`.

        Raises:
            InvalidRequest: the strategy, a setting or the dialect is unknown, or the session has no turn `at_turn`.
            BudgetTooSmall: no valid working set fits.
        """
        given = {**({"strategy": strategy} if strategy else {}), **options}
        responder = self._engine.roster.with_options(self.responder, given)
        if model is not None:
            check_text(model, "model")
            responder = msgspec.structs.replace(responder, llm=msgspec.structs.replace(responder.llm, model=model))
        look = PromptRequest(
            responder=responder,
            tools=tools,
            dialect=check_dialect(dialect),
            at_turn=at_turn,
            use_recorded=not given,
            touch=touch,
            save=save,
        )
        return await preview_context(self._engine, self.ref, look)

    def turn(
        self,
        /,
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
    ) -> LibraryTurn:
        """Return a context manager for a turn in which your program calls the model.

        `messages` are written to the log before the block begins. Messages that are added to the turn are written before
        the block ends.

        Args:
            messages: the user's text, or messages. They can be new messages, results of open calls, or a whole transcript. A message given
                as a dict may have the same fields as in `append`.
            mode: how `messages` relate to the log: as a whole transcript, or as new messages only; see docs/placing.md.
            session_queue: what this turn does if another turn of the session is running: wait (`queue`), raise an error (`reject`), or end
                the running turn (`interrupt`). None: the setting of the `Holdfast`.
            interrupt: the part of the last reply that the user heard, as arguments of `interrupt`, for example `{"chars": 22}`.
            strategy: name of the strategy for this turn's working set, with default settings; None: the agent's strategy.
            budget: token limit for the conversation in the working set; None: the strategy's.
            recall: search the session for messages that are no longer in the prompt and add those that match: `auto`, `on` or `off`; None:
                the agent's setting.
            idempotency_key: if a turn of the user used this key before, it is continued, and `messages` are not written again. If it has its
                reply already, `turn.messages` ends with it, so do not call the model.
            body: other fields of the model call that reduce the budget: `tools`, `max_tokens`.

        Raises:
            IdempotencyConflict: the key was already used with other messages, or for another session.
            TurnGone: the turn of the key is no longer part of the conversation.
            TypeError: a keyword argument is not a field of a model call.
            SessionBusy: another turn is running, and this one was refused or has waited too long.
            TurnInterrupted: another turn interrupted this one before the block began. If that happens later, `add` and `next` raise this
                error.
            TurnLost: another server took the session over. Messages that were added since the last write are not in the log.
        """

        def begin() -> Turn:
            return self._begin(
                messages, mode, session_queue, interrupt, body, strategy, budget, recall, idempotency_key
            )

        return LibraryTurn(begin)

    @like(turn)
    async def begin_turn(self, given: Arguments) -> OpenTurn:
        """Open a turn without a block. The parameters and errors are those of `turn`.

        Call `end` or `abort` of the returned turn, in this task or another. Until then, other turns of the session wait. A turn that is
        garbage-collected before either call is ended with a `ResourceWarning`.

            turn = await session.begin_turn("Where is my order?")
            turn.add(await call_model(turn.messages))
            await turn.end()
        """
        return await self.turn(**given.pop("body"), **given).begin()

    def _begin(
        self,
        messages: Sendable | Sequence[Sendable] | None,
        mode: Mode,
        session_queue: QueueMode | None,
        interrupt: Mapping[str, Any] | None,
        body: dict[str, Any],
        *choices: Any,
    ) -> Turn:
        """Return a turn that is ready to begin.

        `choices` are the turn's strategy, budget, recall and idempotency key. Raises the errors of `turn`.
        """
        check_mode(session_queue)
        if mode not in _MODES:
            raise InvalidRequest(f"mode must be one of {', '.join(_MODES)}, not {mode!r:.80}", param="mode")
        if self.responder.steps and self.responder.agent is not None:
            message = f"agent {self.responder.agent.name!r} is a workflow of other agents: use session.send(), which calls their models"
            raise InvalidRequest(message, param="agent")
        check_keywords(body)
        strategy, budget, recall, key = choices
        responder = self._engine.roster.with_request(self.responder, strategy, budget, recall=recall).without_tools
        request = self._make_request(() if messages is None else messages, responder, mode, interrupt)
        request = msgspec.structs.replace(request, queue=session_queue, body=body, tools_elsewhere=True)
        if key is not None:
            check_text(key, "idempotency_key")
            request = request.with_key(key)
        return Turn(self._opened_engine, request)

    async def send(
        self,
        messages: Sendable | Sequence[Sendable],
        *,
        session_queue: QueueMode | None = None,
        interrupt: Mapping[str, Any] | None = None,
        strategy: str | None = None,
        budget: int | None = None,
        recall: str | bool | None = None,
        **body: Any,
    ) -> dict[str, Any]:
        """Run a whole turn with the session's own model and tools, and return the completion in Chat Completions format.

        Args:
            messages, session_queue, interrupt, strategy, budget, recall: as in `turn`.
            body: other fields of the model call.

        Raises:
            ModelError: the model did not answer; the user's message is in the log.
            SessionBusy, TurnInterrupted, TurnLost: as in `turn`. If the reply was interrupted, the received part is in the log.
        """
        check_mode(session_queue)
        responder = self._engine.roster.with_request(self.responder, strategy, budget, recall=recall)
        request = self._make_request(messages, responder, "auto", interrupt)
        request = msgspec.structs.replace(request, queue=session_queue, body=body)
        await self._engine.ensure_present(self.ref)
        return (await collect_reply(Turn(self._engine, request))).build_completion()

    def _make_request(
        self,
        messages: Sendable | Sequence[Sendable],
        responder: Responder,
        mode: Mode,
        interrupt: Mapping[str, Any] | None,
    ) -> TurnRequest:
        system, sent = self._read(messages, mode, interrupt)
        return TurnRequest(
            ref=self.ref,
            responder=responder,
            incoming=sent.messages,
            own=sent.own,
            heard=sent.heard,
            interruption=sent.interruption,
            system=system,
            mode=sent.mode,
        )

    def _read(
        self, given: Sendable | Sequence[Sendable], mode: Mode, interrupt: Mapping[str, Any] | None
    ) -> tuple[tuple[Message, ...], SentMessages]:
        """Return the leading system messages of a turn's input, and the other messages.

        Raises:
            InvalidMessage: one of the messages is not valid.
        """
        with self._opened_engine.mask_errors():
            messages, own = parse_sendable(given)
        refuse_notes(messages)
        system, incoming = split_system(messages)
        check_kind(interrupt, "interrupt", Mapping | None, "an object")
        if interrupt is not None and (unknown := [name for name in interrupt if name not in HEARD]):
            raise InvalidRequest(f"interrupt has no {unknown[0]!r}; known: {', '.join(HEARD)}", param="interrupt")
        heard = None if interrupt is None else parse_heard(dict(interrupt))
        return system, separate_heard(incoming, own[len(system) :], mode, heard)

    async def compact(
        self, /, *, preview: bool = False, wait: bool = True, **options: Any
    ) -> StoredCompaction | NewCompaction | None:
        """Summarize the older part of the session now, even if no summary is due.

        Args:
            preview: True returns the summary without storing it.
            wait: False returns None at once; the summary is written in the background.
            options: settings of the strategy `summary_buffer` for this summary: `budget`, `target`, `summarizer_llm`, `prompt`.

        Returns:
            The stored compaction, or the failed attempt with its `error`; None if there is nothing to compact.

        Raises:
            InvalidRequest: a setting is unknown, or no model can write summaries.
            Conflict: another process is summarizing the session.
        """
        engine = self._engine
        turn_request = TurnRequest(ref=self.ref, responder=self.responder, incoming=())
        request = await prepare_request(engine, await engine.store.get(self.ref), turn_request)
        if not wait and not preview:
            engine.compactor.schedule(self.ref, self.responder, request, options)
            return None
        return await engine.compactor.compact(self.ref, self.responder, request, options, preview=preview)

    async def compactions(self) -> tuple[StoredCompaction, ...]:
        """Return all summaries (compactions) of the session in order: current and former ones, and failed attempts."""
        return await self._engine.store.compactions(self.ref)

    async def drop_compaction(self, compaction_id: int) -> StoredCompaction:
        """Undo a compaction. Its messages are sent verbatim again or, if it had replaced an earlier compaction, that one is used again.

        Raises:
            CompactionNotFound: the session has no current compaction with this id.
        """
        return await self._engine.compactor.drop(self.ref, compaction_id)

    async def export(self) -> list[dict[str, Any]]:
        """Return the messages of the live path as dicts, with the fields that Holdfast adds to each message."""
        return [to_entry_json(entry) for entry in await self.entries()]

    async def history(self, *, view: Literal["voice", "plain"] = "voice") -> list[dict[str, Any]]:
        """Return the messages of the user and the assistant, without tool and system messages.

        Args:
            view: `voice` returns voice records, `plain` only role and content.
        """
        if view not in ("voice", "plain"):
            raise InvalidRequest("view must be voice or plain", param="view")
        agent, team = self.responder.agent, self.responder.team
        own = team.root if team else agent.name if agent else None
        return await read_history(
            self._engine.store,
            self.ref,
            partial(make_attributed_records, own=own) if view == "voice" else make_plain_records,
        )

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

        Without `content`, `chars` and `ms`, the whole reply counts as heard. See `holdfast.sessions.interruption.interrupt_reply`.

        Args:
            content: the text that was heard.
            chars: number of characters that were heard.
            ms: milliseconds of the spoken reply that were heard.
            total_ms: milliseconds that the whole spoken reply would have taken.
            timestamp: time of the interruption, in milliseconds since the epoch; None: now.
            turn_id: the turn that the reply must belong to; None: any.

        Raises:
            NoReply: there is no reply, or it belongs to another turn.
            HeardMismatch: the reply does not begin with `content`.
            InvalidRequest: a parameter is invalid, or a turn of the session is open in this task.
            SessionBusy: the running turn did not end in time.
        """
        report = {"content": content, "chars": chars, "ms": ms, "total_ms": total_ms}
        with self._engine.mask_errors():
            heard = parse_heard({**report, "timestamp": timestamp, "turn_id": turn_id})
        return await interrupt_reply(self._engine, self.ref, heard)

    async def speak(
        self,
        text: str | None = None,
        *,
        priority: Priority = "INTERRUPT",
        source: SpeechSource = "command",
        interruptable: bool = True,
    ) -> SpeechResult:
        """Write a message of the agent to the log, as a turn of its own; see `holdfast.sessions.speech.deliver_speech`.

        Args:
            text: the text to say. If it is None and `source` is `greeting` or `silence`, the agent's configured text is used.
            priority: what to do if a turn is running: stop it (`INTERRUPT`), wait for it (`APPEND`), or say nothing (`IGNORE`).
            source: `command`, `greeting` or `silence`.
            interruptable: True if the user may interrupt this message. The flag is sent to upstreams that support voice records.

        Raises:
            InvalidRequest: a parameter is invalid, or a turn of the session is open in this task.
            SessionBusy: the running turn did not end in time.
            CallsOpen: with `APPEND`: tool calls of the session still wait for their results.
        """
        speech = Speech(text=text, priority=priority, source=source, interruptable=interruptable)
        return await deliver_speech(self._engine, self.ref, self.responder, speech)

    async def close(self) -> Session:
        """End the session and return it. An in-memory session is deleted instead.

        The next message reopens the session. A session that has already ended stays unchanged. This method waits for turns of the session
        that run in this process.

        Raises:
            SessionNotFound: there is no such session.
            InvalidRequest, SessionBusy: a turn of the session is open in this task; another one did not end in time.
        """
        return await self._engine.end(self.ref)

    async def delete(self) -> bool:
        """Delete the session and everything that belongs to it. Return True if there was one."""
        return await remove_session(self._engine, self.ref) is not None

    async def fork(
        self,
        at_turn: int | None = None,
        id: str | None = None,  # noqa: A002 - part of the public API
    ) -> SessionHandle:
        """Create a new session with a copy of the messages up to and including a turn; None: of all messages.

        The original is not changed. See `holdfast.sessions.forks.fork_session`.
        """
        session = await fork_session(self._engine, self.ref, at_turn=at_turn, new_id=id)
        return SessionHandle(self._engine, session.ref, self.responder, session.identity, is_chosen=self._is_chosen)

    async def rewind(self, at_turn: int, *, expect: int | None = None) -> Session:
        """Go back to the end of a turn: take all later messages off the live path. See `holdfast.sessions.forks.rewind_session`."""
        return (await rewind_session(self._engine, self.ref, at_turn, expect=expect))[0]

    async def verify(self) -> int:
        """Check the log's order, totals and chain of digests; return its number of entries. Raises `StoreCorrupt` if it is damaged."""
        return await verify(self._engine.store, self.ref)
