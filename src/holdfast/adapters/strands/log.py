"""The log of one agent: a session of Holdfast that contains the agent's messages, and a record with the agent's state."""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from strands.types.exceptions import SessionException
from strands.types.session import SessionAgent

import holdfast
from holdfast.adapters.strands.messages import (
    PART,
    Json,
    decode_value,
    encode_value,
    is_pinned,
    load_messages,
    make_entries,
    make_key,
)
from holdfast.errors import Conflict, SessionNotFound, StaleSession, TooLarge

logger = logging.getLogger(__name__)

DEFAULT_AGENT: Final = "default"
"""Id of an agent that was created without one. Its log is the session itself."""
RECORDS: Final = "strands"
"""Namespace of the records of an agent's log. The key `agent` has the agent's state."""
AGENTS: Final = ("strands", "agents")
"""Namespace of the records of a session that list its other agents. A key is an agent's id, its value the id of the agent's log."""
TRIES: Final = 64
"""Maximum number of attempts to write while another program changes the session."""
TIMES: Final = ("created_at", "updated_at")
"""Fields of an agent's state that are not stored: records have times of their own."""


@dataclasses.dataclass(eq=False)
class StoredMessage:
    """A message of the agent that is in the log, or is being written."""

    tracking_id: str | None
    key: int
    """`make_key` of the message."""
    pinned: bool
    seqs: Sequence[int] = ()
    """`seq` of each of its entries; empty until they are written."""
    is_outdated: bool = False
    """True if the log keeps an older content of the message, so that no prompt may be made from the log."""


class Change(NamedTuple):
    """A change of the log, computed from an agent."""

    agent: Json
    """The state of the agent, as JSON without times."""
    dumped: str
    """The same as text."""
    system: str | None
    """The agent's system prompt."""
    replaced: Sequence[StoredMessage] = ()
    """Messages that `replacement` replaces, in order."""
    replacement: Sequence[Json] = ()
    new: Sequence[tuple[StoredMessage, Sequence[Json]]] = ()
    erase: bool = False
    """True to erase the content of `replaced` for good."""


class FoundContext(NamedTuple):
    """A working set, and the agent's messages that it comes from."""

    context: holdfast.Context
    positions: Mapping[int, tuple[int, int]]
    """For the `seq` of each entry in the working set: the index of its message, and its position in that message."""


class AgentLog:
    """The log of one agent.

    Methods that begin with `plan_` are called by the agent, in any thread. All others run in the event loop of the `Holdfast`.

    Args:
        session_id: id of the session of Strands.
        agent_id: id of the agent.
        user_id: owner of the session.
    """

    def __init__(self, session_id: str, agent_id: str, user_id: str) -> None:
        self.session_id, self.agent_id, self.user_id = session_id, agent_id, user_id
        self.id = session_id if agent_id == DEFAULT_AGENT else f"{session_id}:{agent_id}"
        self.pending: list[Change] = []
        """Changes to write before the next one."""
        self._stored: list[StoredMessage] = []
        self._lock = asyncio.Lock()
        self._handle: holdfast.SessionHandle | None = None
        self._marker: str | None = None
        self._saved: str | None = None
        self._has_warned = False

    # -- reading -----------------------------------------------------------------

    async def load(self, hf: holdfast.Holdfast) -> tuple[Json | None, list[Json]]:
        """Read the log. Return the state of the agent, or None if there is none yet, and its messages.

        Raises:
            SessionException: the log belongs to another agent.
        """
        try:
            session = await hf.get(self.id, user_id=self.user_id)
        except SessionNotFound:
            return None, []
        record = await session.records(RECORDS).get("agent")
        agent: Json | None = record.value if record else None
        if agent and (agent["session_id"], agent["agent_id"]) != (self.session_id, self.agent_id):
            raise SessionException(
                f"session {self.id!r} has the log of agent {agent['agent_id']!r} in session {agent['session_id']!r}:"
                " use another session id or agent id"
            )
        # The marker is read first: if another process writes meanwhile, the next write notices it.
        self._marker = (await session.info()).log_marker
        loaded = load_messages(await session.entries())
        self._stored = [_make_stored(message, seqs) for message, seqs in loaded]
        self._saved = None if agent is None else json.dumps(agent, sort_keys=True)
        return agent and decode_value(agent), [message for message, _ in loaded]

    async def read_context(
        self, hf: holdfast.Holdfast, keys: Sequence[int], pinned: Sequence[bool], options: Mapping[str, Any]
    ) -> FoundContext | None:
        """Return the working set of the log, or None if the log differs from the agent's messages.

        Args:
            hf: the open `Holdfast`.
            keys: `make_key` of each message of the agent.
            pinned: whether each message is pinned; the log takes over changes.
            options: arguments of `SessionHandle.context`.
        """
        async with self._lock:
            if not keys or [one.key for one in self._stored] != keys or any(one.is_outdated for one in self._stored):
                return None
            session = await self._open(hf, None)
            if (await session.info()).log_marker != self._marker and not await self._catch_up(session):
                return None
            for one, flag in zip(self._stored, pinned, strict=True):
                if one.pinned != flag:
                    for seq in one.seqs:
                        await session.annotate(seq, pinned=flag)
                    one.pinned, self._marker = flag, (await session.info()).log_marker
            context = await session.context(save=True, **options)
        positions = {}
        for seq in {seq for source in context.sources if source.kind == "entry" for seq in source.seqs}:
            at = bisect.bisect_left(self._stored, seq, key=lambda one: one.seqs[-1])
            positions[seq] = at, self._stored[at].seqs.index(seq)
        return FoundContext(context, positions)

    async def _catch_up(self, session: holdfast.SessionHandle) -> bool:
        """Return True if no other program has added or removed messages since the last write."""
        marker = (await session.info()).log_marker
        last = max((one.seqs[-1] for one in self._stored if one.seqs), default=-1)
        found = [entry.seq for entry in await session.entries(start=max(last, 0)) if not entry.is_note]
        if found != ([last] if last >= 0 else []):
            return False
        self._marker = marker
        return True

    # -- planning ----------------------------------------------------------------

    def plan_change(self, agent: Any, message: Json | None = None) -> Change | None:
        """Return what must be written so that the log agrees with the agent; None if it does.

        All messages after the newest stored one are new. If the newest stored message has changed, it is replaced.

        Args:
            agent: the agent.
            message: the message that was just added; None: the newest one.
        """
        changed, new = self._compare(list(agent.messages), message)
        if changed is None or make_key(changed) == self._stored[-1].key:
            return self._plan(agent, new)
        return self._plan(agent, new, self._find_copies(self._stored[-1]), changed)

    def _compare(self, messages: Sequence[Json], message: Json | None) -> tuple[Json | None, Sequence[Json]]:
        """Return the agent's copy of the newest stored message, or None, and the messages that are not stored."""
        end = len(messages)
        if message is not None:
            end = next((at for at in range(end, 0, -1) if messages[at - 1] is message), 0)
            if not end:
                return None, [message]
        if not self._stored:
            return None, messages[:end]
        last = self._stored[-1]
        for at in range(end - 1 if message is None else end - 2, -1, -1):
            if _is_same(messages[at], last):
                return messages[at], messages[at + 1 : end]
        if message is None:
            return None, []
        return (message, []) if _is_same(message, last) else (None, [message])

    def plan_redaction(self, agent: Any, message: Json) -> Change | None:
        """Return the change that replaces the newest stored message, and its copies, by `message`, and erases them.

        Return None if the newest stored message is another one, because `message` is not stored yet.

        Raises:
            SessionException: no message is stored.
        """
        if not self._stored:
            raise SessionException("No message to redact.")
        last, name = self._stored[-1], message.get("tracking_id")
        if name and last.tracking_id and name != last.tracking_id:
            return None
        planned = self._plan(agent, [], self._find_copies(last), message)
        assert planned is not None, "a redaction is always written"
        return planned._replace(erase=True)

    def plan_update(self, agent: Any, message: Json) -> Change | None:
        """Return the change that replaces the stored message with the same tracking id; None if there is none."""
        named = [one for one in self._stored if one.tracking_id == message["tracking_id"]]
        return self._plan(agent, [], named[-1:], message) if named else None

    def _find_copies(self, stored: StoredMessage) -> list[StoredMessage]:
        """Return a message and its copies: a prompt that is sent again after an error is in the log twice."""
        name = stored.tracking_id
        return [one for one in self._stored if one is stored or (name is not None and one.tracking_id == name)]

    def _plan(
        self,
        agent: Any,
        added: Sequence[Json],
        replaced: Sequence[StoredMessage] = (),
        replacement: Json | None = None,
    ) -> Change | None:
        described = {**SessionAgent.from_agent(agent).to_dict(), "session_id": self.session_id}
        state = encode_value({name: value for name, value in described.items() if name not in TIMES})
        dumped = json.dumps(state, sort_keys=True)
        new = [(_make_stored(message), make_entries(message)) for message in added]
        if not replaced and not new and dumped == self._saved:
            return None
        made: Sequence[Json] = () if replacement is None else make_entries(replacement)
        for one in replaced:
            one.key = make_key(replacement or {})
        self._stored += [stored for stored, _ in new]
        system = getattr(agent, "system_prompt", None)
        return Change(state, dumped, system if isinstance(system, str) else None, replaced, made, new)

    # -- writing -----------------------------------------------------------------

    async def write(self, hf: holdfast.Holdfast, change: Change | None) -> None:
        """Write pending changes, and then a change: new messages and the state of the agent are written in one transaction.

        If a change fails, what it would replace or erase is pending again, and its new messages are planned again.

        Raises:
            SessionException: another program has written messages to the log.
        """
        async with self._lock:
            changes = [*self.pending, *([change] if change else [])]
            self.pending.clear()
            for at, one in enumerate(changes):
                try:
                    await self._write(hf, one)
                except BaseException:
                    dropped = {id(stored) for failed in changes[at:] for stored, _ in failed.new}
                    self._stored = [stored for stored in self._stored if id(stored) not in dropped]
                    self.pending[:0] = [failed._replace(new=()) for failed in changes[at:] if failed.replaced]
                    raise

    async def _write(self, hf: holdfast.Holdfast, change: Change) -> None:
        session = await self._open(hf, change.system)
        for one in reversed(change.replaced):  # a replacement changes the positions of all later entries
            try:
                await self._replace(session, one, change)
                one.is_outdated = False
            except TooLarge as exc:
                if exc.param != "seq":  # the new content itself is too large
                    raise
                await self._give_up_replacing(hf, session, one, erase=change.erase)
        own = session.records(RECORDS)
        records = [] if change.dumped == self._saved else [own.make_put("agent", change.agent)]
        if change.new:
            await self._append(session, change, records)
        elif records:
            await own.change(records)
        self._saved = change.dumped

    async def _open(self, hf: holdfast.Holdfast, system: str | None) -> holdfast.SessionHandle:
        if self._handle is not None:
            return self._handle
        if self.id != self.session_id:
            base = await hf.session(self.session_id, user_id=self.user_id)
            agents = base.records(AGENTS)
            if await agents.get(self.agent_id) is None:
                await agents.put(self.agent_id, self.id)
        session = await hf.session(self.id, user_id=self.user_id, system=system)
        if self._marker is None and not await self._catch_up(session):
            raise self._make_error()
        self._handle = session
        return session

    async def _append(self, session: holdfast.SessionHandle, change: Change, records: Sequence[Any]) -> None:
        entries = [entry for _, made in change.new for entry in made]
        for _ in range(TRIES):
            try:
                appended = await session.append(entries, expect_log=self._marker, records=records)
            except StaleSession as exc:
                if not await self._catch_up(session):
                    raise self._make_error() from exc
                continue
            self._marker, seq = appended.session.log_marker, appended.start
            for stored, made in change.new:
                stored.seqs, seq = range(seq, seq + len(made)), seq + len(made)
            return
        raise Conflict(f"session {self.id!r} is being written to constantly: try again")

    async def _replace(self, session: holdfast.SessionHandle, stored: StoredMessage, change: Change) -> None:
        """Replace the entries of a message. If there are fewer than before, empty messages take the places of the others."""
        size = len(stored.seqs)
        if len(change.replacement) > size and stored is self._stored[-1 - len(change.new)]:  # it has grown
            if not await self._catch_up(session):
                raise self._make_error()
            appended = await session.append(change.replacement, retire_from=stored.seqs[0])
            stored.seqs = [entry.seq for entry in appended.entries]
            self._marker = appended.session.log_marker
            return
        for part, made in zip_longest(range(size), change.replacement[:size]):
            entry = made or {"role": "user", "content": "", "metadata": {PART: part}}
            await session.replace(stored.seqs[part], entry, erase=change.erase)
            await self._renumber(session, stored)

    async def _give_up_replacing(
        self, hf: holdfast.Holdfast, session: holdfast.SessionHandle, stored: StoredMessage, *, erase: bool
    ) -> None:
        """Erase a message in its place, or else leave it unchanged: so much follows it that it cannot be replaced."""
        if not self._has_warned:
            self._has_warned = True
            outcome = "its content is erased instead" if erase else "the log keeps its old content"
            logger.warning("session %r: a message changed that is too far back to be replaced; %s", self.id, outcome)
        stored.is_outdated = not erase
        if erase:
            for seq in stored.seqs:
                await hf.erase(session.ref, seq)
            self._marker = (await session.info()).log_marker

    async def _renumber(self, session: holdfast.SessionHandle, stored: StoredMessage) -> None:
        """Read the positions of a message's entries and of all later ones, after one of its entries was replaced."""
        self._marker = (await session.info()).log_marker
        seqs = [entry.seq for entry in await session.entries(start=stored.seqs[0]) if not entry.is_note]
        later = [one for one in self._stored[self._stored.index(stored) :] if one.seqs]
        if len(seqs) != sum(len(one.seqs) for one in later):
            raise self._make_error()
        for one in later:
            one.seqs, seqs = seqs[: len(one.seqs)], seqs[len(one.seqs) :]

    def _make_error(self) -> SessionException:
        return SessionException(
            f"another program has written messages to session {self.id!r} since agent {self.agent_id!r} was created:"
            " create the agent again, so that it has these messages"
        )


def _make_stored(message: Json, seqs: Sequence[int] = ()) -> StoredMessage:
    return StoredMessage(message.get("tracking_id"), make_key(message), is_pinned(message), seqs)


def _is_same(message: Json, stored: StoredMessage) -> bool:
    if stored.tracking_id is not None:
        return message.get("tracking_id") == stored.tracking_id
    return make_key(message) == stored.key
