"""What is done to a session from outside of its turns, as voice agents need it: interrupt, speak, greet, and tell its history.

Interrupting and speaking take a session's place in the queue as a turn does, on whichever server, so that neither comes between
the writes of one; and each is one write, all or nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec
from msgspec.structs import replace as evolve

from holdfast.agents import Agent, Voice
from holdfast.domain.heard import Cut, Heard, Round, cut_at, place_in, rounds_of, text_of
from holdfast.domain.history import again
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, Session, SessionRef
from holdfast.domain.state import scope_of
from holdfast.engine.engine import Engine
from holdfast.engine.guarded import masked
from holdfast.engine.queueing import Hold, QueueMode
from holdfast.engine.scoped import SHARED
from holdfast.errors import (
    CallsOpen,
    Conflict,
    HeardMismatch,
    InvalidMetadata,
    InvalidRequest,
    NoReply,
    SessionBusy,
    StaleSession,
    TooLarge,
    UsageError,
)
from holdfast.limits import INTERRUPTED_BEHIND
from holdfast.stores.base import MAX_PAGE, Append, Appended, NewSession, Store
from holdfast.stores.walk import ENTRIES
from holdfast.turns.instructing import worded
from holdfast.turns.turn import counted
from holdfast.wire.voice import INTERRUPTABLE

T = TypeVar("T")
Priority = Literal["INTERRUPT", "APPEND", "IGNORE"]
SpeechSource = Literal["command", "greeting", "silence"]
TRIES: Final = 8
"""Times that something is read or written again because somebody else wrote in between."""
_MODES: Final[Mapping[str, QueueMode]] = {"INTERRUPT": "interrupt", "APPEND": "queue", "IGNORE": "reject"}
_ALL: Final = Heard()
Writer = Callable[[Append], Awaitable[Appended]]


class Interruption(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a reply that was interrupted."""

    session: Session
    """As it is then."""
    entry: Entry | None
    """The reply, or what was delivered of it; None: nothing of it was heard, or there is none."""
    interrupted: bool
    """Whether it was interrupted: not where all of it was heard."""
    stopped: bool
    """Whether a turn was running, and was asked to stop."""


class Speech(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the agent says from outside. Raises `InvalidRequest` for what cannot be said."""

    text: str | None = None
    """None: the agent's own words for its `source`, a greeting or a silence."""
    priority: Priority = "INTERRUPT"
    source: SpeechSource = "command"
    interruptable: bool = True

    def __post_init__(self) -> None:
        text: Any = self.text  # whoever calls a constructor may pass anything
        if text is not None and not (isinstance(text, str) and text.strip()):
            raise InvalidRequest("text must be what is to be said, a string with words in it", param="text")
        if self.priority not in _MODES:
            raise InvalidRequest(f"priority must be one of {', '.join(_MODES)}", param="priority")
        if self.source not in get_args(SpeechSource):
            known = ", ".join(get_args(SpeechSource))
            raise InvalidMetadata(f"source must be one of {known}: what a model says comes of a turn", param="source")
        if not isinstance(self.interruptable, bool):
            raise InvalidRequest("interruptable must be true or false", param="interruptable")
        if self.text is None and self.source == "command":
            raise InvalidRequest("text is missing: what is to be said", param="text")

    def words(self, agent: Agent | None) -> str:
        """What is said. Raises `InvalidRequest` where the agent has no words of its own."""
        if self.text is not None:
            return self.text
        own = agent and (agent.greeting if self.source == "greeting" else agent.silence_message)
        if own:
            return own
        name = "greeting" if self.source == "greeting" else "silence_message"
        who = f"agent {agent.name!r} has no {name}" if agent else "the session has no agent"
        raise InvalidRequest(f"text is missing, and {who}", param="text")

    def check_size(self, most: int) -> None:
        """Refuse a text of more than `most` bytes in UTF-8. Raises `TooLarge`."""
        size = len((self.text or "").encode(errors="surrogatepass"))
        if size > most:
            raise TooLarge(f"text has {size} bytes; gateway.max_speech is {most}", param="text")


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a speech."""

    session: Session
    """As it is then."""
    entry: Entry | None
    """What was said; None: nothing was, because a turn was running that was not to be disturbed."""
    stopped: bool
    """Whether a turn was running, and was asked to stop."""


# -- interrupting ------------------------------------------------------------


async def interrupted(engine: Engine, ref: SessionRef, heard: Heard) -> Interruption:
    """Stop the session's turn if one runs, and keep of its last reply what was heard.

    The reply leaves the live path; what was delivered stands in its place, marked, with what was generated beside it, and what
    came behind it follows. A reply of which nothing was heard leaves nothing. It can be done again, and then only shorten.

    Args:
        engine: of the store.
        ref: which session.
        heard: how much. With a `turn_id`, a later turn that runs meanwhile is left alone.

    Raises:
        SessionNotFound: no such session.
        SessionBusy: the turn that runs has not ended for too long.
        NoReply: there is none, or it is of another turn than `turn_id`; a turn that ran was stopped all the same.
        HeardMismatch: the reply does not begin with `content`; the same holds.
        InvalidRequest: a turn of the session is open in this task.
    """
    await engine.present(ref)
    heard = await _as_kept(engine, heard)
    session = await engine.store.get(ref)
    if heard.turn_id is not None and session.tail.turn_id > heard.turn_id:
        return await _interrupted(engine, ref, heard, partial(engine.store.append, ref), stopped=False)
    async with engine.queues.steady(ref, "interrupt") as hold:
        await hold.opened(lambda: engine.store.get(ref))
        write = partial(hold.written, engine.store, last=True)
        return await _interrupted(engine, ref, heard, write, stopped=hold.stopped)


async def _as_kept(engine: Engine, heard: Heard) -> Heard:
    """What was heard as the log has it: without secrets."""
    if heard.content is None or engine.guard is None:
        return heard
    (told,) = await masked(engine.guard, [Message(role="assistant", content=heard.content)])
    return evolve(heard, content=told.text)


async def _interrupted(engine: Engine, ref: SessionRef, heard: Heard, write: Writer, *, stopped: bool) -> Interruption:
    for _ in range(TRIES):
        session = await engine.store.get(ref)
        said = await _said_last(engine.store, session, unsaid=stopped)
        _check_turn(session, said, heard, stopped=stopped)
        if not stopped:
            await _check_heard(engine.store, session, said, heard)
        cut = _cut(session, said, heard, engine.clock())
        if cut is None:
            entry = said.rounds[-1].head if said.rounds else None
            marked = bool(said.rounds) and said.rounds[-1].cut
            return Interruption(session=session, entry=entry, interrupted=marked, stopped=stopped)
        now = engine.clock()
        entries = await _instead(cut, said.behind)
        try:
            appended = await write(
                Append(
                    entries=entries,
                    timestamp=now,
                    expect=session.version,
                    identity=session.identity,
                    retire_from=cut.head.seq,
                )
            )
        except StaleSession:  # somebody wrote without a turn: look again
            continue
        engine.warm.forget(ref)
        entry = appended.entries[0] if cut.message is not None else None
        return Interruption(session=appended.session, entry=entry, interrupted=True, stopped=stopped)
    raise Conflict(f"session {ref.id!r} is being written to all the time: try again")


class _Said(msgspec.Struct, frozen=True):
    """The last reply of a log, and what stands behind it, in order."""

    rounds: Sequence[Round]
    behind: Sequence[Entry]


async def _said_last(store: Store, session: Session, *, unsaid: bool = False) -> _Said:
    """The last reply. Costs what stands behind it, and the reply.

    Args:
        store: where it is.
        session: as it stands.
        unsaid: a turn was stopped; one that had said nothing has no reply.

    Raises:
        NoReply: it stands too far back.
    """
    if session.messages == 0 or (unsaid and session.tail.last_kind in ("user", "system")):
        return _Said((), ())
    behind: list[Entry] = []
    reply: list[Entry] = []
    stop: int | None = None
    while True:
        page = await store.entries(session.ref, stop=stop, limit=ENTRIES, descending=True)
        for entry in page:
            if not reply and entry.kind in ("user", "system"):
                behind.append(entry)
            elif not reply or _belongs(entry, reply[-1]):
                reply.append(entry)
            else:
                return _Said(rounds_of(reply[::-1]), behind[::-1])
        if len(page) < ENTRIES:
            return _Said(rounds_of(reply[::-1]), behind[::-1])
        if len(behind) > INTERRUPTED_BEHIND:
            raise NoReply(f"the last {INTERRUPTED_BEHIND} messages of session {session.id!r} hold no reply")
        stop = page[-1].seq


def _belongs(entry: Entry, following: Entry) -> bool:
    """Whether it is of the reply that `following` is of: tools that ran before it, in the same turn."""
    return entry.turn_id == following.turn_id and entry.kind in ("calls", "result")


def _check_turn(session: Session, said: _Said, heard: Heard, *, stopped: bool) -> None:
    """Refuse where there is no reply, or it is of another turn. Raises `NoReply`."""
    if not said.rounds:
        if not stopped:
            raise NoReply(f"session {session.id!r} has no reply that could be interrupted")
        if heard.content is not None and heard.content.strip():
            raise HeardMismatch(
                "the turn that ran was stopped before it had said anything, so content is no beginning of it: "
                "name the turn_id of an earlier reply if that is meant",
                param="content",
            )
        return
    turn_id = said.rounds[-1].head.turn_id
    if heard.turn_id is not None and heard.turn_id != turn_id:
        raise NoReply(f"the last reply of session {session.id!r} is of turn {turn_id}, not of {heard.turn_id}")


async def _check_heard(store: Store, session: Session, said: _Said, heard: Heard) -> None:
    """Refuse to go on to an earlier reply where the last one is gone because nothing of it was heard. Raises `NoReply`.

    Whoever says so twice, because the first answer was lost, means the same one. Reads what stands behind the reply.
    """
    turns = {entry.turn_id for entry in said.behind}
    if not said.rounds or not turns or heard.turn_id is not None:
        return
    start = said.rounds[-1].head.seq + 1
    behind = await store.entries(session.ref, start=start, limit=INTERRUPTED_BEHIND, descending=True, retired=True)
    gone = next((e for e in behind if e.retired_by is not None and e.kind == "assistant" and e.turn_id in turns), None)
    if gone is not None:
        raise NoReply(
            f"the last reply of session {session.id!r}, of turn {gone.turn_id}, is gone: nothing of it was heard, or it was"
            f" taken back; an earlier one is interrupted by its turn_id, {said.rounds[-1].head.turn_id}"
        )


def _cut(session: Session, said: _Said, heard: Heard, now: int) -> Cut | None:
    if not said.rounds:
        return None
    text = text_of(said.rounds)
    if said.rounds[-1].head.erased and not heard.everything:
        raise NoReply(f"the last reply of session {session.id!r} is erased: what was heard of it nobody can tell")
    return cut_at(said.rounds, place_in(text, heard), now if heard.timestamp is None else heard.timestamp)


async def _instead(cut: Cut, behind: Sequence[Entry]) -> list[NewEntry]:
    """What stands in the place of a reply that was cut, and of what came behind it."""
    entries = [again(entry) for entry in (*cut.results, *behind)]
    if cut.message is None:
        return entries
    (tokens,) = await counted([cut.message])
    return [evolve(again(cut.head), message=cut.message, tokens=tokens, metadata=cut.metadata), *entries]


# -- speaking ----------------------------------------------------------------


async def spoken(engine: Engine, ref: SessionRef, voice: Voice, speech: Speech) -> Spoken:
    """Have the agent say something, in a turn of its own.

    Args:
        engine: of the store.
        ref: in which session.
        voice: who says it.
        speech: what, and whether a turn that runs is stopped for it (`INTERRUPT`), waited for (`APPEND`), or a reason to say
            nothing (`IGNORE`).

    Raises:
        SessionNotFound: no such session.
        SessionBusy: a turn that runs has not ended for too long.
        CallsOpen: with `APPEND`: tool calls wait for their results.
        InvalidRequest: there is nothing to say, or a turn of the session is open in this task.
    """
    words = speech.words(voice.agent)
    await engine.present(ref)
    try:
        async with engine.queues.steady(ref, _MODES[speech.priority]) as hold:
            await hold.opened(lambda: engine.store.get(ref))
            return await _spoken(engine, hold, voice, speech, words)
    except SessionBusy:
        if speech.priority != "IGNORE":
            raise
        return Spoken(session=await engine.store.get(ref), entry=None, stopped=False)


async def _spoken(engine: Engine, hold: Hold, voice: Voice, speech: Speech, words: str) -> Spoken:
    ref, stopped = hold.ref, hold.stopped
    if speech.text is None and voice.agent is not None:
        words = await worded(engine, await engine.store.get(ref), words, voice.agent)
        if not words.strip():
            raise InvalidRequest(f"nothing is left to say of what agent {voice.agent.name!r} says", param="text")
    metadata = {"source": speech.source, **({} if speech.interruptable else {INTERRUPTABLE: False})}
    message = Message(role="assistant", content=words)
    agent = voice.agent.name if voice.agent else None
    (tokens,) = await counted([message])
    for _ in range(TRIES):
        session, now = await engine.store.get(ref), engine.clock()
        cut = None
        if session.tail.open_calls:
            if speech.priority == "IGNORE":
                return Spoken(session=session, entry=None, stopped=False)
            if speech.priority == "APPEND":
                raise CallsOpen(ref.id)
            cut = _cut(session, await _said_last(engine.store, session), _ALL, now)
        before = [] if cut is None else await _instead(cut, ())
        new = NewEntry(
            message=message,
            tokens=tokens,
            timestamp=now,
            metadata=metadata,
            agent=agent,
            turn_id=session.tail.turn_id + 1,
        )
        write = Append(
            entries=[*before, new],
            timestamp=now,
            expect=session.version,
            identity=session.identity,
            retire_from=None if cut is None else cut.head.seq,
        )
        try:
            appended = await hold.written(engine.store, write, last=True)
        except StaleSession:  # somebody wrote without a turn: look again
            continue
        engine.warm.take(ref, appended, write)
        return Spoken(session=appended.session, entry=appended.entries[-1], stopped=stopped)
    raise Conflict(f"session {ref.id!r} is being written to all the time: try again")


# -- greeting ----------------------------------------------------------------


async def greeted(engine: Engine, new: NewSession, agent: Agent | None) -> Session:
    """Make a session that begins with its agent's greeting, if that has one, in the write that makes it. Raises `SessionExists`."""
    if agent is None or not agent.greeting:
        return await engine.store.create(new)
    words = await worded(engine, new, agent.greeting, agent)
    if not words.strip():
        return await engine.store.create(new)
    message = Message(role="assistant", content=words)
    (tokens,) = await counted([message])
    greeting = NewEntry(
        message=message,
        tokens=tokens,
        timestamp=new.timestamp,
        metadata={"source": "greeting"},
        agent=agent.name,
        turn_id=0,
    )
    session = await _made_with(engine, new, greeting)
    engine.life.heed(new.ttl)
    return session


async def _made_with(engine: Engine, new: NewSession, greeting: NewEntry) -> Session:
    """Make a session with its first entry, and write what its state brings to shared scopes; none where that is refused."""
    own = {key: value for key, value in new.state.items() if scope_of(key) not in SHARED}
    session = (await engine.store.replace(evolve(new, state=own), [greeting], fresh=True)).session
    if len(own) == len(new.state):
        return session
    shared = {key: value for key, value in new.state.items() if key not in own}
    write = Append(state_delta=shared, timestamp=new.timestamp, identity=session.identity)
    try:
        return (await engine.store.append(new.ref, write)).session
    except UsageError:
        await engine.store.delete(new.ref)
        raise


# -- telling -----------------------------------------------------------------


async def history(store: Store, ref: SessionRef, told: Callable[[Sequence[Entry]], list[T]]) -> list[T]:
    """What `told` makes of a session's live path as it was at one moment, page by page: a long log is not held as entries.

    Args:
        store: where it is.
        ref: which session.
        told: makes something of some entries, in their order.

    Raises:
        SessionNotFound: no such session.
    """
    for _ in range(TRIES):
        version = (await store.get(ref)).version
        page = await store.entries(ref, limit=MAX_PAGE)
        found, pages = told(page), 1
        while len(page) == MAX_PAGE:
            page = await store.entries(ref, start=page[-1].seq + 1, limit=MAX_PAGE)
            found, pages = found + told(page), pages + 1
        if pages == 1 or (await store.get(ref)).version == version:
            return found
    return told(await store.entries(ref))  # it is written to all the time: then at once
