"""Let an agent say something outside of turns, for example its greeting, in one write between turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec.structs import replace as evolve

from holdfast.agents import Agent, Responder
from holdfast.domain.interruptions import HeardReport
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, Session, SessionRef
from holdfast.domain.state import get_scope
from holdfast.engine.engine import Engine
from holdfast.engine.entries import count_tokens
from holdfast.engine.scoped_state import SHARED
from holdfast.engine.session_lock import QueueMode, SessionLock
from holdfast.errors import (
    CallsOpen,
    Conflict,
    InvalidMetadata,
    InvalidRequest,
    SessionBusy,
    StaleSession,
    TooLarge,
    UsageError,
)
from holdfast.limits import SPEECH_BYTES
from holdfast.sessions.interruption import TRIES, build_replacement
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from holdfast.turns.interruptions import find_cut, find_last_reply
from holdfast.turns.prompt import fill_template
from holdfast.wire.voice import INTERRUPTABLE

Priority = Literal["INTERRUPT", "APPEND", "IGNORE"]
SpeechSource = Literal["command", "greeting", "silence"]
_MODES: Final[Mapping[str, QueueMode]] = {"INTERRUPT": "interrupt", "APPEND": "queue", "IGNORE": "reject"}
_ALL: Final = HeardReport()


class Speech(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the agent says outside of a turn.

    Raises:
        InvalidRequest: a value is invalid.
    """

    text: str | None = None
    """The text to say; None: the agent's configured text, if `source` is `greeting` or `silence`."""
    priority: Priority = "INTERRUPT"
    source: SpeechSource = "command"
    interruptable: bool = True

    def __post_init__(self) -> None:
        text: Any = self.text  # callers of a constructor may pass anything
        if text is not None and not (isinstance(text, str) and text.strip()):
            raise InvalidRequest("text must be a string with words to say", param="text")
        if self.priority not in tuple(_MODES):
            raise InvalidRequest(f"priority must be one of {', '.join(_MODES)}", param="priority")
        if self.source not in get_args(SpeechSource):
            known = ", ".join(get_args(SpeechSource))
            raise InvalidMetadata(f"source must be one of {known}; a model speaks only in turns", param="source")
        if not isinstance(self.interruptable, bool):
            raise InvalidRequest("interruptable must be true or false", param="interruptable")
        if self.text is None and self.source == "command":
            raise InvalidRequest("text is missing: send the words to say", param="text")

    def get_words(self, agent: Agent | None) -> str:
        """Return the text to say. Raises `InvalidRequest` if neither the speech nor the agent has a text."""
        if self.text is not None:
            return self.text
        own = agent and (agent.greeting if self.source == "greeting" else agent.silence_message)
        if own:
            return own
        name = "greeting" if self.source == "greeting" else "silence_message"
        who = f"agent {agent.name!r} has no {name}" if agent else "the session has no agent"
        raise InvalidRequest(f"text is missing, and {who}", param="text")

    def check_size(self) -> None:
        """Raise `TooLarge` if the text has more than `SPEECH_BYTES` in UTF-8."""
        size = len((self.text or "").encode(errors="surrogatepass"))
        if size > SPEECH_BYTES:
            raise TooLarge(f"text has {size} bytes; the server accepts at most {SPEECH_BYTES}", param="text")


class SpeechResult(msgspec.Struct, frozen=True, kw_only=True):
    """The session and the message that was said."""

    session: Session
    """The session after the speech."""
    entry: Entry | None
    """The message; None if nothing was said, because a turn was running and the priority is `IGNORE`."""
    stopped: bool
    """True if a turn was running and was asked to stop."""


async def deliver_speech(engine: Engine, ref: SessionRef, responder: Responder, speech: Speech) -> SpeechResult:
    """Write a message of the agent to the log, as a turn of its own, without calling a model.

    Args:
        engine: the tenant's engine.
        ref: the session.
        responder: the agent that says the text.
        speech: the text, and what to do if a turn is running: stop it (`INTERRUPT`), wait for it (`APPEND`), or say nothing (`IGNORE`).

    Raises:
        SessionNotFound: there is no such session.
        SessionBusy: a running turn did not end in time.
        CallsOpen: with `APPEND`: tool calls of the session still wait for their results.
        InvalidRequest: there is nothing to say, or a turn of the session is open in this task.
    """
    words = speech.get_words(responder.agent)
    await engine.ensure_present(ref)
    try:
        async with engine.locks.make_brief_lock(ref, _MODES[speech.priority]) as lock:
            await lock.open(lambda: engine.store.get(ref))
            return await _write_speech(engine, lock, responder, speech, words)
    except SessionBusy:
        if speech.priority != "IGNORE":
            raise
        return SpeechResult(session=await engine.store.get(ref), entry=None, stopped=False)


async def _write_speech(
    engine: Engine, lock: SessionLock, responder: Responder, speech: Speech, words: str
) -> SpeechResult:
    ref, stopped = lock.ref, lock.stopped
    if speech.text is None and responder.agent is not None:
        words = await fill_template(engine, await engine.store.get(ref), words, responder.agent)
        if not words.strip():
            raise InvalidRequest(
                f"the text is empty after filling the template of agent {responder.agent.name!r} says", param="text"
            )
    metadata = {"source": speech.source, **({} if speech.interruptable else {INTERRUPTABLE: False})}
    message = Message(role="assistant", content=words)
    (tokens,) = await count_tokens([message])
    for _ in range(TRIES):
        session, now = await engine.store.get(ref), engine.clock()
        cut = None
        if session.tail.open_calls:
            if speech.priority == "IGNORE":
                return SpeechResult(session=session, entry=None, stopped=False)
            if speech.priority == "APPEND":
                raise CallsOpen(ref.id)
            cut = find_cut(session, await find_last_reply(engine.store, session), _ALL, now)
        before, origins = ([], ()) if cut is None else await build_replacement(engine.store, session, cut, ())
        new = NewEntry(
            message=message,
            tokens=tokens,
            timestamp=now,
            metadata=metadata,
            agent=responder.agent_name,
            turn_id=session.tail.turn_id + 1,
        )
        write = Append(
            entries=[*before, new],
            timestamp=now,
            expect=session.version,
            identity=session.identity,
            retire_from=None if cut is None else cut.head.seq,
            origins=origins,
        )
        try:
            appended = await lock.append(engine.store, write, last=True)
        except StaleSession:  # there was a write outside of turns: read again
            continue
        engine.warm.take(ref, appended, write)
        return SpeechResult(session=appended.session, entry=appended.entries[-1], stopped=stopped)
    raise Conflict(f"session {ref.id!r} is being written to constantly: try again")


# -- greeting ----------------------------------------------------------------


async def create_with_greeting(engine: Engine, new: NewSession, agent: Agent | None) -> Session:
    """Create a session in a single write. If its agent has a greeting, the session begins with it.

    Raises:
        SessionExists: a session with this id exists already.
    """
    if agent is None or not agent.greeting:
        return await engine.store.create(new)
    words = await fill_template(engine, new, agent.greeting, agent)
    if not words.strip():
        return await engine.store.create(new)
    message = Message(role="assistant", content=words)
    (tokens,) = await count_tokens([message])
    greeting = NewEntry(
        message=message,
        tokens=tokens,
        timestamp=new.timestamp,
        metadata={"source": "greeting"},
        agent=agent.name,
        turn_id=0,
    )
    session = await _create_with_entry(engine, new, greeting)
    engine.life.note_ttl(new.ttl)
    return session


async def _create_with_entry(engine: Engine, new: NewSession, greeting: NewEntry) -> Session:
    """Create a session with its first entry, then write the shared state. If the state is refused, delete the session again."""
    own = {key: value for key, value in new.state.items() if get_scope(key) not in SHARED}
    session = (await engine.store.replace(evolve(new, state=own), [greeting], fresh=True)).session
    if len(own) == len(new.state):
        return session
    shared = {key: value for key, value in new.state.items() if key not in own}
    write = Append(state_delta=shared, timestamp=new.timestamp, identity=session.identity)
    try:
        return (await engine.store.append(new.ref, write)).session
    except UsageError:
        await engine.store.remove(new.ref)
        raise
