"""Runs steps on working copies of what lies in Redis: a read is of one moment, a write is one script.

A write works on what was read, or is remembered from the write before, and commits with a script that does nothing unless the
session's guard is still the one that was read. Every write gives a guard that was never there before: the number of the user's
write, and a mark of the attempt. So an attempt is done once at most, however late it arrives, and what stands in the guard
afterwards tells whether it was; where others have written since, only an idempotency key can, and else nobody knows.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import struct
import warnings
from collections.abc import Callable, Hashable, Sequence
from itertools import count
from time import monotonic
from types import ModuleType
from typing import Any, Final, TypeVar

import msgspec

from holdfast.domain.memory import Owner
from holdfast.errors import HoldfastError, InvalidRequest, StoreClosed, StoreCorrupt, StoreError, StoreUnavailable
from holdfast.stores.logic.network import NAME, PATIENCE, LastKnown, Turnstile, check_loop, unknown
from holdfast.stores.logic.steps import Steps
from holdfast.stores.redis import (
    api_keys,
    artifacts,
    lists,
    log,
    matching,
    media,
    memories,
    origins,
    overlays,
    sessions,
    shared,
    tenants,
)
from holdfast.stores.redis.connection import Argument, Command, Unsure, counted
from holdfast.stores.redis.keys import Keys, ScopeKeys, tag_of
from holdfast.stores.redis.nodes import Nodes, script
from holdfast.stores.redis.outbox import News, Outbox, noted
from holdfast.stores.redis.work import MARKED, Head, Missing, Snapshot, State, Work, head_command

T = TypeVar("T")
ROUNDS: Final = 100
"""Times that a job may ask for something more to be read."""
STALE: Final = 3
"""Times that others may be faster with a session, before its next write is reserved."""
RESERVED: Final = 500
"""Milliseconds that a reservation holds."""
MOST_TENANTS: Final = 10_000
"""Tenants that are known to be noted."""
_STALE: Final = -1
"""What the commit answers when the guard is another one."""
_COMMIT = script("told", "commit")
_SHARE = script("told", "state", "commit")
"""The same where state that sessions share is changed."""
_FETCH = script("fetch")
_RESERVE = script("reserve")
_DISCARD = script("discard")
_SCRIPTED: Final = (b"window", b"heads", b"standing", b"sighted", b"placed")
"""Reads that only a script does."""
_SORTED: Final = frozenset(
    b"l x m r a z d mp mv mr ms md recent named withdrawn idle owned expiring due gone dirty leases learned_at blobs"
    b" api_ids memory_owners tenants".split()
)
"""Parts of names of keys that are sorted sets; all others are hashes."""


def _handlers(*modules: ModuleType) -> dict[str, Callable[..., Any]]:
    """The public functions of some modules by name: a statement's is called as it is."""
    found = ((module, name, one) for module in modules for name, one in vars(module).items())
    return {
        name: one
        for module, name, one in found
        if getattr(one, "__module__", None) == module.__name__ and not name.startswith("_")
    }


HANDLERS: Final = _handlers(
    api_keys, artifacts, lists, log, matching, media, memories, origins, overlays, sessions, shared, tenants
)
"""What each statement does."""


class _Unknown(Exception):  # not an error: an outcome
    """Others have written since an attempt whose outcome is not known."""


class _Done(Exception):  # not an error: an outcome
    """That attempt was done."""

    def __init__(self, number: bytes, result: Any, news: Sequence[News]) -> None:
        super().__init__()
        self.number = number
        self.result = result
        self.news = news


class _Job:
    """One operation, and what is known of it over several attempts."""

    __slots__ = ("committing", "give_up", "hopeful", "marks", "queue", "seen", "snapshot", "stale", "steps", "token")

    def __init__(self, steps: Callable[[], Steps[Any]], queue: Hashable = None) -> None:
        self.steps = steps
        self.queue = queue
        self.snapshot = Snapshot()
        self.hopeful = True
        self.committing = False
        """Whether anything may have been written."""
        self.token = b""
        """Of its reservation, if it needs one."""
        self.stale = 0
        """Times that others were faster."""
        self.give_up = 0.0
        self.marks: dict[bytes, tuple[Any, Sequence[News]]] = {}
        """Attempts whose outcome is not known, with what they would have given, and what was to be told of them."""
        self.seen: set[bytes | None] = set()
        """The guards that they saw."""

    def guessed(self, work: Work) -> bool:
        """Whether `work` went by what is only remembered, or hoped for."""
        return self.snapshot.remembered or (work.hopeful and bool(work.checks))

    def anew(self) -> None:
        """Begin the next attempt with nothing but what is read then."""
        self.snapshot, self.hopeful = Snapshot(), False

    # An attempt whose outcome is not known: see `Judge`.

    def unclear(self, work: Work) -> bool:
        """Whether others have written since, and no key was asked what happened."""
        state = work.guarded
        return bool(self.marks) and state is not None and state.guard not in self.seen and "asked" not in work.overlay

    def before(self, work: Work, name: str | None) -> None:
        """See `Judge.before`."""
        if self.unclear(work):
            if name != "idempotency_get":
                raise _Unknown
            work.overlay["asked"] = True

    def behind(self, work: Work) -> None:
        """See `Judge.behind`."""
        guard = None if work.guarded is None else work.guarded.guard
        number, _, mark = (guard or b"").rpartition(b".")
        if mark in self.marks:
            raise _Done(number, *self.marks[mark])


class Database:
    """See `holdfast.stores.logic.database.Database`."""

    _closed = True
    """Until it is made."""

    def __init__(self, nodes: Nodes, keys: Keys, remembered: LastKnown[Head]) -> None:
        self.keys = keys
        self.nodes = nodes
        self.outbox = Outbox(nodes, keys)
        self._remembered = remembered
        self._turnstile = Turnstile()
        mark = secrets.token_hex(4).encode() + b"%x"
        self._marks = (mark % number for number in count())
        self._tenants: set[str] = set()
        self._running = 0
        self._quiet = asyncio.Event()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False

    # -- reading -----------------------------------------------------------------

    async def read(self, steps: Callable[[], Steps[T]], *, single: bool = False, ahead: Sequence[Command] = ()) -> T:
        """What `steps` gives; `ahead` is what they are known to ask for, so that it is one round trip."""
        self._enter()
        try:
            job = _Job(steps)
            if ahead:
                await self._fetch(job.snapshot, Missing(tuple(ahead), steady=False))
            result: T = (await self._worked(job))[1]
            return result
        finally:
            self._leave()

    async def _worked(self, job: _Job) -> tuple[Work, Any]:
        """A run of the steps with all that they ask for, and what they gave."""
        for _ in range(ROUNDS):
            work = Work(self.keys, job.snapshot, job.queue, hopeful=job.hopeful, apart=self.nodes.clustered)
            try:
                return work, work.drive(job.steps(), HANDLERS, job if job.marks else None)
            except Missing as missing:
                await self._fetch(job.snapshot, missing)
            except HoldfastError as exc:
                if job.unclear(work):
                    raise _Unknown from exc
                if not job.guessed(work):
                    raise
                job.anew()
            except OverflowError as exc:
                raise InvalidRequest("a number does not fit into 64 bits") from exc
            except (msgspec.MsgspecError, struct.error, UnicodeDecodeError) as exc:
                raise StoreCorrupt(f"{self.nodes.name}: what is stored is damaged: {exc}") from exc
        raise StoreUnavailable(f"{self.nodes.name}: what this reads was changed {ROUNDS} times meanwhile")

    async def _fetch(self, snapshot: Snapshot, missing: Missing) -> None:
        """Read what is missing. What has to be of one moment is read again with it."""
        if missing.steady:
            answers, commands = snapshot.steady, list(missing.commands)
        else:
            answers = snapshot.answers
            commands = list(dict.fromkeys((*answers, *missing.commands)))
            snapshot.remembered = False
        groups: dict[bytes, list[Command]] = {}
        for command in commands:
            groups.setdefault(tag_of(_key_of(command)) if self.nodes.clustered else b"", []).append(command)
        found = await asyncio.gather(*(self._together(group) for group in groups.values()))
        answers.clear() if not missing.steady else None
        for group, replies in zip(groups.values(), found, strict=True):
            for command, reply in zip(group, replies, strict=True):
                answers[command] = reply
                if command[0] == b"window":
                    answers.update(log.expanded(command, reply))

    async def _together(self, commands: list[Command]) -> list[Any]:
        """The answers to some commands, at one moment."""
        if len(commands) == 1 and commands[0][0] not in _SCRIPTED:
            return [await self.nodes.call(_key_of(commands[0]), commands[0])]
        keys: dict[bytes, int] = {}
        arguments = counted(commands, keys)
        answers: list[Any] = await self.nodes.run(_FETCH, list(keys), arguments, once=False)
        return answers

    async def tidied(self, tenant: str) -> None:
        """See that a tenant's indexes know what processes wrote that are no more. One server knows by itself."""
        if self.nodes.clustered:
            self._enter()
            try:
                await self.outbox.tidy(tenant)
            finally:
                self._leave()

    # -- writing -----------------------------------------------------------------

    async def write(
        self,
        steps: Callable[[], Steps[T]],
        *,
        scrub: bool = False,
        queue: Hashable = None,
        behind: Sequence[Hashable] = (),
        light: bool = False,
    ) -> T:
        """See `Database.write`. What was removed leaves the server's files as the server sees fit."""
        self._enter()
        job = _Job(steps, queue)
        if not self.nodes.clustered:
            try:
                return await self._queued(job)  # type: ignore[no-any-return]
            finally:
                self._leave()
        # What follows the commit has to be carried through also when the caller gives up.
        task = self._loop.create_task(self._queued(job))
        self._jobs.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not job.committing:
                task.cancel()
            raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._jobs.discard(task)
        self._leave()
        if not task.cancelled():
            task.exception()  # its caller may have gone

    async def _queued(self, job: _Job) -> Any:
        """Run the job when it is its turn: writers of one session would only get into each other's way."""
        if job.queue is None:
            return await self._attempted(job)
        await self._turnstile.enter(job.queue)
        try:
            known = self._remembered.take(job.queue)
            if known is not None:
                job.snapshot.answers[head_command(self._scope(job.queue))] = known
                job.snapshot.remembered = True
            return await self._attempted(job)
        finally:
            self._turnstile.leave(job.queue)

    def _scope(self, queue: Any) -> Any:
        tenant, user_id, *session = queue
        if isinstance(user_id, Owner):
            return self.keys.owner(tenant, user_id)
        return self.keys.session(tenant, user_id, *session) if session else self.keys.user(tenant, user_id or "")

    async def _attempted(self, job: _Job) -> Any:
        """Run the job until it is done or refused."""
        job.give_up = monotonic() + PATIENCE
        while True:
            try:
                work, result = await self._worked(job)
                if work.changes:
                    if await self._commit(job, work, result):
                        return result
                elif not job.guessed(work):
                    return result
                else:
                    job.anew()
            except _Done as done:
                await self._deliver(self._scope(job.queue), done.number, done.news)
                return done.result
            except (_Unknown, StoreUnavailable) as exc:
                if job.marks:
                    raise unknown(self.nodes.name) from exc
                raise
            except Unsure as exc:
                if not job.marks or monotonic() > job.give_up:
                    raise unknown(self.nodes.name) from exc.__cause__
                job.anew()

    async def _commit(self, job: _Job, work: Work, result: Any) -> bool:
        """Write all of it; whether that is done, or something has changed and the job is to be run again."""
        state, mark = work.guarded, next(self._marks)
        if state is not None:
            await self._prepared(state, work)
        keys, arguments = self._packed(job, work, mark)
        job.committing = True
        try:
            shares = any(command[0] == "share" for command in work.commands)
            answer = await self.nodes.run(_SHARE if shares else _COMMIT, keys, arguments, once=True)
        except Unsure:
            if state is not None:
                job.marks[mark] = (result, work.news)
                job.seen.add(state.guard)
            raise
        if answer[0]:
            await self._beaten(job, answer[1] if answer[0] == _STALE else None)
            return False
        if state is not None:
            await self._deliver(state.keys, answer[1], work.news)
            await self._discard(state.keys.tenant, work.behind)
            self._remember(job.queue, work, state, answer[1] + b"." + mark)
        return True

    async def _deliver(self, scope: ScopeKeys, number: bytes, news: Sequence[News]) -> None:
        """Tell the tenant's indexes what a write did, where that was not part of it."""
        if self.nodes.clustered and news:
            await self.outbox.deliver(scope, number, news)

    async def _discard(self, tenant: str, known: Sequence[Argument]) -> None:
        """The tenant need not know any more whose some memories were, and who has none."""
        keys = self.keys.tenant(tenant)
        for at in range(0, len(known), MARKED):
            try:
                await self.nodes.run(
                    _DISCARD, [keys.memory_ids, keys.memory_owners], known[at : at + MARKED], once=False
                )
            except StoreError:  # whoever reads it looks whether they are there
                return

    async def _prepared(self, state: State, work: Work) -> None:
        """What has to be known of a session or its tenant before it is written to."""
        await asyncio.gather(*(self.nodes.call(_key_of(command), command) for command in work.before))
        tenant = state.keys.tenant
        if state.fresh and tenant not in self._tenants:
            await self.nodes.call(self.keys.tenants, (b"ZADD", self.keys.tenants, 0, tenant))
            if len(self._tenants) > MOST_TENANTS:
                self._tenants.clear()
            self._tenants.add(tenant)
        if self.nodes.clustered and state.keys.user_id:
            await self.outbox.note(state.keys)

    async def _beaten(self, job: _Job, head: Head | None) -> None:
        """Get ready for another attempt, after others were faster; `head` is the session as they left it."""
        job.stale += 1
        if monotonic() > job.give_up:
            raise StoreUnavailable(f"{self.nodes.name}: others wrote to the session for {PATIENCE:.0f} seconds")
        if head is None:
            job.anew()
        else:
            job.snapshot = Snapshot()
            job.snapshot.answers[head_command(self._scope(job.queue))] = head
        if job.stale >= STALE and job.queue is not None:
            job.token = job.token or next(self._marks)
            taken = await self.nodes.run(_RESERVE, [self._scope(job.queue).head], [job.token, RESERVED], once=False)
            if taken:
                job.snapshot = Snapshot()
            else:
                await asyncio.sleep(random.uniform(0.0005, 0.004))  # noqa: S311  # spreads rivals

    def _packed(self, job: _Job, work: Work, mark: bytes) -> tuple[list[bytes], list[Argument]]:
        """Keys and arguments of the commit, see `commit.lua`."""
        state, places = work.guarded, {}
        checks, commands = work.checks, work.commands
        base, first, guarded = "", 0, 0
        if state is not None:
            places = {state.keys.head: 1, state.keys.clock: 2}
            checks = [(state.keys.head, b"g", state.guard), *checks]
            if work.moved_to is not None:
                guarded = places.setdefault(work.moved_to.head, 3)
            elif state.record is not None or not hasattr(state.keys, "live"):
                guarded = 1
            if not self.nodes.clustered:
                base = self.keys.tenant(state.keys.tenant).base if work.news else ""
                commands = [*commands, *((kind, b"", name, *rest) for kind, name, rest in work.news)]
            else:
                commands = [*commands, *(("note", state.keys.outbox, n[0] + n[1], noted(n)) for n in work.news)]
        checked: list[Argument] = []
        for key, field, value in checks:
            checked += (places.setdefault(key, len(places) + 1), field, b"-" if value is None else b"=" + value)
        flat = counted(commands, places)
        # Keys whose types were right when this process wrote to them last are not looked at again.
        types = "" if job.snapshot.remembered else "".join(map(_type_of, places))
        listed = list(places)
        if any(command[0] == "f" for command in commands):
            assert work.tenant is not None
            first = len(listed) + 1
            listed += work.tenant.indexes
        head = (mark if state is not None else b"", base, first, int(self.nodes.clustered), guarded, job.token)
        return listed, [*head, types, work.record, len(checks), *checked, *flat]

    def _remember(self, queue: Hashable, work: Work, state: State, guard: bytes) -> None:
        """Keep what the session is now, for its next write."""
        if state.record is not None and work.moved_to is None:
            self._remembered.put(queue, (guard, state.record, state.profile), len(state.profile or b""))

    # -- life --------------------------------------------------------------------

    def _enter(self) -> None:
        if self._closed:
            raise StoreClosed
        check_loop(self._loop)
        self._running += 1

    def _leave(self) -> None:
        self._running -= 1
        if not self._running:
            self._quiet.set()

    async def close(self) -> None:
        """Finish what was accepted, then close the connections."""
        if not self._closed:
            self._closed = True
            self._quiet.clear()
            if self._running:
                try:
                    async with asyncio.timeout(PATIENCE):
                        await self._quiet.wait()
                except TimeoutError:
                    pass
            await self.outbox.close()
        await self.nodes.close()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        """Say that the database was forgotten."""
        if not self._closed:
            _warn(f"unclosed store {NAME}", ResourceWarning, source=self)
            self.nodes.kill()


def _key_of(command: Command) -> bytes:
    """What a command is about."""
    key = command[1]
    assert isinstance(key, bytes)
    return key


def _type_of(key: bytes) -> str:
    """The letter of the type that a key has."""
    part = key.rpartition(b"}:")[2].partition(b":")[0] if b"}:" in key else key.rpartition(b":")[2]
    return "z" if part in _SORTED else "h"
