"""Run operations on Redis: a read sees one snapshot, and a write commits with one script.

Each session, owner of memories or other scope has a guard, a value that every write replaces by a new, unique one. A write
bases its changes on what it has read, or on what this process remembers from its previous write. The script that commits it
does nothing if the guard has changed since.

A guard consists of the number of the user's write and a mark, which is unique for each attempt at a write. So an attempt is
executed at most once, however late it arrives. If its outcome is unknown, the guard shows whether it was executed. But if another
process has written since, the guard has changed, and only the write's idempotency key can show it. Without an idempotency key, the
outcome stays unknown.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import struct
import warnings
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from time import monotonic
from typing import Any, Final, TypeVar

import msgspec

from holdfast.domain.session import Session
from holdfast.errors import (
    HoldfastError,
    InvalidRequest,
    SessionNotFound,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)
from holdfast.stores.logic.network import NAME, PATIENCE, SessionCache, Turnstile, check_loop, make_unknown_outcome
from holdfast.stores.redis.connection import Argument, Command, Key, OutcomeUnknown, flatten
from holdfast.stores.redis.keys import Keys, ScopeKeys, SessionKeys, TenantKeys, extract_hash_tag
from holdfast.stores.redis.nodes import Nodes, load_script
from holdfast.stores.redis.outbox import News, Outbox, encode_news
from holdfast.stores.redis.records import (
    Record,
    build_session,
    decode_record,
    encode_profile,
    pack,
    strip_profile,
)

T = TypeVar("T")
MAX_ARGUMENTS: Final = 1000
"""Maximum number of arguments in one command. A script call may have several thousand."""
MOST_TENANTS: Final = 10_000
"""Maximum number of tenants that this process remembers as added to the store's list of tenants. Beyond it, the memory is cleared."""
_STALE: Final = -1
"""The reply of the commit script if the guard has changed."""
_COMMIT = load_script("live", "news", "commit")
_COMMIT_WITH_STATE = load_script("live", "news", "state", "commit")
"""The commit script for writes that also change the shared state of a user or tenant."""
_FETCH = load_script("live", "fetch")
_DISCARD = load_script("discard")
_SCRIPTED: Final = (b"window", b"extent", b"range", b"count", b"at", b"find_places", b"read_place", b"list_by_status")
"""Commands for reading that are not Redis commands, but functions of the script `_FETCH`."""
_SORTED: Final = frozenset(
    b"x m r a z d mp mv mr ms md rp re rs record_owners record_expiries recent named withdrawn idle owned expiring due departed dirty leases learned_at blobs"
    b" api_ids sign_in_expiries sign_in_times sign_in_holders deletion_times deletion_kinds memory_owners tenants".split()
)
"""Names of keys that are sorted sets. The key `log` is a list, and all others are hashes."""
Head = Sequence[Any]
"""Guard, record and profile of a session or other scope. The record is bytes if it was just read, and decoded if it is remembered."""


class _Undecidable(Exception):  # not an error: an outcome
    """It is not possible to find out whether an attempt succeeded, because another process has written since."""


class _AttemptSucceeded(Exception):  # not an error: an outcome
    """An attempt whose outcome was unknown has succeeded."""

    def __init__(self, number: bytes, result: Any, news: Sequence[News]) -> None:
        super().__init__()
        self.number = number
        self.result = result
        self.news = news


class _Conflict(Exception):  # not an error: an outcome
    """Data that the operation depends on were changed by another writer, so the operation must be run again."""


def make_head_command(keys: ScopeKeys) -> Command:
    """Return the command that reads guard, record and profile from a head."""
    return (b"HMGET", keys.head, b"g", b"r", b"p")


class Job:
    """A read or write, with its state across several attempts."""

    __slots__ = (
        "attempts",
        "committing",
        "give_up",
        "head",
        "is_optimistic",
        "is_remembered",
        "key",
        "keys",
        "seen",
        "work",
    )

    def __init__(self, keys: Any, work: Callable[[Transaction], Awaitable[Any]], key: str | None = None) -> None:
        self.keys = keys
        self.work = work
        self.key = key
        """The idempotency key of the operation, or None."""
        self.head: Head | None = None
        self.is_remembered = False
        """True if the head is the one that this process remembers from its previous write, and was not read."""
        self.is_optimistic = True
        """True if a read may be skipped because the commit checks its expected result. An example is the read that shows that an
        idempotency key is new."""
        self.committing = False
        """True once a commit was sent. From then on, data may have been written."""
        self.give_up = monotonic() + PATIENCE
        self.attempts: dict[bytes, tuple[Any, Sequence[News]]] = {}
        """Result and news of each attempt whose outcome is unknown, by the attempt's mark."""
        self.seen: set[bytes | None] = set()
        """The guards that the attempts in `attempts` have read."""

    def reset(self) -> None:
        """Make the next attempt read everything again."""
        self.head, self.is_remembered, self.is_optimistic = None, False, False


class Transaction:
    """One attempt at an operation. It collects the data that were read, and the commands that the commit executes.

    Attributes:
        keys: keys of the scope whose guard is checked. The scope is a session, an owner of memories, or a user or tenant with
            artifacts or state. None if the write has no guard.
        commands: the commands that write data, in order. If the server's memory is full, the first one fails.
        checks: key, field and value of hash fields that must be unchanged at the commit.
        news: changes of the tenant's indexes: kind, name, arguments.
        tenant_commands: commands for the tenant's slot that are sent before the commit.
        obsolete: fields and values to remove from the tenant's hash of memory ids after the commit.
    """

    def __init__(self, database: Database, job: Job) -> None:
        self.database = database
        self.job = job
        self.keys: Any = job.keys
        self.commands: list[Command] = []
        self.checks: list[tuple[bytes, Argument, bytes | None]] = []
        self.news: list[News] = []
        self.tenant_commands: list[Command] = []
        self.obsolete: list[Argument] = []
        self.late: list[Command] = []
        """Commands that are executed after a new session has got its number."""
        self.marks: list[Argument] = []
        """Entries to add to the index of digests, for new log entries; see `matching`."""
        self.tenant: TenantKeys | None = None
        """The tenant whose indexes a write without a guard changes; None for other writes."""
        self.rounds = 0
        self.guard: bytes | None = None
        self.base: Record | None = None
        """The session's record as it was read; None if there is no session."""
        self.record: Record | None = None
        self.profile: bytes | None = None
        self.is_new = False
        """True if the write stores a new session, or adds an owner of memories or records to the tenant's list of owners."""
        self.moved_to: SessionKeys | None = None
        if job.head is not None:
            self._open(job.head)

    @property
    def is_cluster(self) -> bool:
        """True if the store is a cluster. In a cluster, a user's and the tenant's keys may be on different servers."""
        return self.database.nodes.is_cluster

    @property
    def is_guess(self) -> bool:
        """True if the attempt relies on a remembered head, or on an assumption that is checked only by the commit."""
        return self.job.is_remembered or (self.job.is_optimistic and bool(self.checks))

    @property
    def has_changes(self) -> bool:
        """True if there is anything to write."""
        return bool(self.commands or self.news) or self.record is not self.base

    # -- reading ---------------------------------------------------------------

    async def read(self, *commands: Command) -> list[Any]:
        """Return the replies to commands. Also read the head of the scope, if it was not read yet."""
        if self.keys is None or self.job.head is not None:
            self.rounds += 1
            return await self.database.fetch(commands) if commands else []
        head, *answers = await self.database.fetch((make_head_command(self.keys), *commands))
        self.job.head = head
        self._open(head)
        if self.job.attempts:
            await self.database.resolve_attempts(self.job, self.guard)
        return answers

    async def read_fields(self, key: bytes, names: Sequence[Argument]) -> dict[Any, bytes]:
        """Return those fields of a hash that exist, by name in the order of `names`."""
        values = [value for some in await self.read(*split_command(b"HMGET", key, names)) for value in some]
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    def _open(self, head: Head) -> None:
        self.guard, record, self.profile = head
        self.base = self.record = decode_record(self.keys, record) if type(record) is bytes else record

    async def read_session(self, *commands: Command) -> tuple[Session, list[Any]]:
        """Return the session, and the replies to `commands`. Raises `SessionNotFound` if the session does not exist."""
        answers = await self.read(*commands) if commands or self.job.head is None else []
        if self.record is None:
            raise SessionNotFound(self.keys.id)
        return build_session(self.record, self.profile), answers

    async def is_consistent(self) -> bool:
        """Return True if the guard is still the one that was read, so that all reads belong to one snapshot."""
        if self.rounds == 0 or self.keys is None:
            return True
        (guard,) = await self.database.fetch(((b"HGET", self.keys.head, b"g"),))
        return bool(guard == self.guard)

    # -- writing ---------------------------------------------------------------

    def queue(self, name: str | bytes, key: bytes, *arguments: Argument) -> None:
        """Add a command to those that the commit executes."""
        self.commands.append((name, key, *arguments))

    def check(self, key: bytes, field: Argument, value: bytes | None) -> None:
        """Make the commit fail if a field of a hash has another value than `value`. None means that the field must not exist."""
        self.checks.append((key, field, value))

    def add_news(self, kind: bytes, name: bytes, *arguments: bytes | int) -> None:
        """Add a change of the tenant's indexes. It replaces an earlier change with the same kind and name."""
        self.news.append((kind, name, arguments))

    def update_record(self, **fields: Any) -> None:
        """Set fields of the session's record. Raises `StoreCorrupt` if the stored record cannot be decoded."""
        assert self.record is not None
        if self.record.session.damaged:
            raise StoreCorrupt("its record is damaged and cannot be decoded")
        self.record = msgspec.structs.replace(self.record, **fields)

    def save_session(self, session: Session, *, profile: bool = False) -> None:
        """Write the session's fields. The large fields are written only if `profile` is True."""
        encoded = encode_profile(session) if profile else self.profile
        if encoded != self.profile:
            self.profile = encoded
            self.queue("HDEL", self.keys.head, b"p") if encoded is None else self.queue(
                "HSET", self.keys.head, b"p", encoded
            )
        self.update_record(session=strip_profile(session))

    def insert_session(self, session: Session) -> None:
        """Write a new session under `keys`."""
        if self.moved_to is not None:
            self._detach_moved()
        self.is_new, self.profile, self.record = True, None, Record(strip_profile(session))
        self.save_session(session, profile=True)

    def _detach_moved(self) -> None:
        """Complete the move of a withdrawn session to other keys, because a new session will use its previous keys.

        Under its new keys, the withdrawn session gets its own guard.
        """
        moved, self.moved_to = self.moved_to, None
        assert moved is not None
        assert self.record is not None
        self.queue("detach", moved.head, pack(self.record))
        self._add_session_news(moved, self.record, b"-", b"w")

    def complete(self) -> bytes:
        """Queue the commands that every write of a session needs. Return the encoded record, or empty bytes if it is unchanged."""
        if not isinstance(self.keys, SessionKeys) or (self.record is self.base and not self.is_new):
            return b""
        record = b""
        if self.record is not None:
            keys = self.moved_to or self.keys
            record = pack(self.record)
            if self.is_new:
                self.queue("number", keys.head, Key(keys.numbers), keys.id, encode_identity(keys))
            self.commands += self.late
            for begin in range(0, len(self.marks), MAX_ARGUMENTS):
                self.queue(
                    "mark",
                    self.keys.marks,
                    Key(self.keys.numbers),
                    self.keys.id,
                    *self.marks[begin : begin + MAX_ARGUMENTS],
                )
        self._update_indexes()
        if self.moved_to is not None or self.record is None:
            self.queue("keep_clock", self.keys.clock)
        return record

    def _update_indexes(self) -> None:
        """Queue the changes of the user's and the tenant's indexes of sessions."""
        keys, base, record, moved = self.keys, self.base, self.record, self.moved_to
        before, after = _compute_flag(base, keys.withdrawn), _compute_flag(record, keys.withdrawn)
        if moved is not None:
            self.queue("ZREM", keys.recent, keys.field)
            self._add_session_news(keys, None, before, b"d")
            self._add_session_news(moved, record, b"-", b"w")
        elif before != after or (record is not None and base is not None and _get_times(base) != _get_times(record)):
            if not keys.withdrawn and record is None:
                self.queue("ZREM", keys.recent, keys.field)
            elif not keys.withdrawn:
                assert record is not None
                self.queue("ZADD", keys.recent, record.session.updated_at, keys.field)
            self._add_session_news(keys, record, before, after)

    def _add_session_news(self, keys: SessionKeys, record: Record | None, before: bytes, after: bytes) -> None:
        if record is None:
            self.add_news(b"s", keys.field, keys.named, b"d", before, 0, 0, 0)
            return
        times = (record.session.updated_at, record.session.accessed_at, record.expires_at or 0)
        self.add_news(b"s", keys.field, keys.named, after, before, *times)


def _get_times(record: Record) -> tuple[int, int, int | None]:
    return record.session.updated_at, record.session.accessed_at, record.session.ttl


def _compute_flag(record: Record | None, withdrawn: str) -> bytes:
    """Return the flag that tells `news.s` in `news.lua` which of the tenant's indexes contain the session."""
    if record is None:
        return b"-"
    if withdrawn:
        return b"w"
    if record.session.status != "active":
        return b"c"
    if record.session.ttl is None:
        return b"i"
    return b"x" if record.session.ttl else b"o"


def encode_identity(keys: SessionKeys) -> bytes:
    """Encode tenant, user, id and withdrawal of a session. The head of a session contains these bytes after the session's number."""
    return pack((keys.tenant, keys.user_id, keys.id, keys.withdrawn))


def split_command(name: bytes, key: bytes, fields: Sequence[Argument]) -> list[Command]:
    """Return commands with at most `MAX_ARGUMENTS` fields each, instead of one command with many fields."""
    return [(name, key, *fields[at : at + MAX_ARGUMENTS]) for at in range(0, len(fields), MAX_ARGUMENTS)]


class Database:
    """An open store. It runs the reads and writes of all its handles."""

    _closed = True
    """True before `__init__` has finished, and after `close`."""

    def __init__(self, nodes: Nodes, keys: Keys, remembered: SessionCache[Head]) -> None:
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

    async def read(self, keys: ScopeKeys | None, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `work` and return its result. All reads in `work` see the same snapshot of the data."""
        self._enter()
        try:
            give_up = monotonic() + PATIENCE
            while monotonic() < give_up:
                job = Job(keys, work)
                job.is_optimistic = False
                transaction = Transaction(self, job)
                try:
                    result = await self._run_work(transaction)
                except HoldfastError:
                    if await transaction.is_consistent():
                        raise
                else:
                    if await transaction.is_consistent():
                        return result  # type: ignore[no-any-return]  # of this work
            raise StoreUnavailable(
                f"{self.nodes.name}: the data kept changing during this read for {PATIENCE:.0f} seconds"
            )
        finally:
            self._leave()

    async def fetch(self, commands: Sequence[Command]) -> list[Any]:
        """Return the replies to commands. Commands on keys in the same slot see the same snapshot of the data."""
        if len(commands) == 1 or not self.nodes.is_cluster:
            return await self._fetch_slot(commands)
        groups: dict[bytes, list[int]] = {}
        for at, command in enumerate(commands):
            groups.setdefault(extract_hash_tag(get_key(command)), []).append(at)
        found = await asyncio.gather(*(self._fetch_slot([commands[at] for at in group]) for group in groups.values()))
        answers: list[Any] = [None] * len(commands)
        for group, replies in zip(groups.values(), found, strict=True):
            for at, reply in zip(group, replies, strict=True):
                answers[at] = reply
        return answers

    async def _fetch_slot(self, commands: Sequence[Command]) -> list[Any]:
        if not commands:
            return []
        if len(commands) == 1 and commands[0][0] not in _SCRIPTED:
            return [await self.nodes.call(get_key(commands[0]), commands[0])]
        keys: dict[bytes, int] = {}
        arguments = flatten(commands, keys)
        answers: list[Any] = await self.nodes.run(_FETCH, list(keys), arguments, once=False)
        return answers

    async def _run_work(self, transaction: Transaction) -> Any:
        """Run the transaction's work. Errors of encoding and decoding become `InvalidRequest` and `StoreCorrupt`.

        A `LookupError` shows that data are missing that belong to other data: these may have been deleted between two reads.
        """
        try:
            return await transaction.job.work(transaction)
        except OverflowError as exc:
            raise InvalidRequest("a number does not fit into 64 bits") from exc
        except (msgspec.MsgspecError, struct.error, UnicodeDecodeError) as exc:
            raise StoreCorrupt(f"{self.nodes.name}: the stored data are damaged: {exc}") from exc
        except LookupError as exc:
            raise StoreCorrupt(f"{self.nodes.name}: the stored data are incomplete") from exc

    async def tidy(self, tenant: str) -> None:
        """Deliver the news that crashed processes left in the outboxes of the tenant's users. A single server has no outboxes."""
        if self.nodes.is_cluster:
            await self.outbox.tidy(tenant)

    # -- writing -----------------------------------------------------------------

    async def write(
        self, keys: ScopeKeys | None, work: Callable[[Transaction], Awaitable[T]], *, key: str | None = None
    ) -> T:
        """Run `work`, commit, and return its result. The changes are as durable as the server's configuration makes them.

        Args:
            keys: keys of the session or other scope whose guard the commit checks; None if `work` makes its own checks.
            work: the operation. It is called again with a new transaction if another writer changed the data in the meantime.
            key: idempotency key of the operation.
        """
        self._enter()
        job = Job(keys, work, key)
        if not self.nodes.is_cluster:
            try:
                return await self._run_in_turn(job)  # type: ignore[no-any-return]
            finally:
                self._leave()
        # The steps after the commit must be done even if the caller is cancelled.
        task = self._loop.create_task(self._run_in_turn(job))
        self._jobs.add(task)
        task.add_done_callback(self._finish_job)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not job.committing:
                task.cancel()
            raise

    def _finish_job(self, task: asyncio.Task[Any]) -> None:
        self._jobs.discard(task)
        self._leave()
        if not task.cancelled():
            task.exception()  # marked as retrieved: the caller may have been cancelled

    async def _run_in_turn(self, job: Job) -> Any:
        """Run the job after the earlier jobs of this process for the same keys. If they ran concurrently, they would only conflict."""
        if job.keys is None:
            return await self._run(job)
        await self._turnstile.enter(job.keys.head)
        try:
            job.head = self._remembered.take(job.keys.head)
            job.is_remembered = job.head is not None
            return await self._run(job)
        finally:
            self._turnstile.leave(job.keys.head)

    async def _run(self, job: Job) -> Any:
        """Make attempts at the job until one succeeds, or fails with an error that another attempt cannot avoid."""
        while True:
            try:
                return await self._attempt(job)
            except _Conflict:
                if monotonic() > job.give_up:
                    message = (
                        f"{self.nodes.name}: other processes kept writing to the session for {PATIENCE:.0f} seconds"
                    )
                    raise StoreUnavailable(message) from None
            except _AttemptSucceeded as done:
                await self._deliver(job.keys, done.number, done.news)
                return done.result
            except (_Undecidable, StoreUnavailable) as exc:
                if job.attempts:
                    raise make_unknown_outcome(self.nodes.name) from exc
                raise
            except OutcomeUnknown as exc:
                if not job.attempts or monotonic() > job.give_up:
                    raise make_unknown_outcome(self.nodes.name) from exc.__cause__
                job.reset()

    async def _attempt(self, job: Job) -> Any:
        transaction = Transaction(self, job)
        try:
            result = await self._run_work(transaction)
        except HoldfastError:
            if transaction.is_guess or not await transaction.is_consistent():
                job.reset()
                raise _Conflict from None
            raise
        if transaction.has_changes:
            await self._commit(job, transaction, result)
        elif transaction.is_guess or not await transaction.is_consistent():
            job.reset()
            raise _Conflict
        return result

    async def resolve_attempts(self, job: Job, guard: bytes | None) -> None:
        """Find out from the current guard whether one of the attempts with an unknown outcome succeeded.

        Returns normally if the job can be tried again. In this case, no attempt succeeded, or the next attempt finds the result by the
        idempotency key.

        Raises:
            _AttemptSucceeded: an attempt succeeded.
            _Undecidable: another process has written since, and the job has no idempotency key.
        """
        number, _, mark = (guard or b"").rpartition(b".")
        if mark in job.attempts:
            raise _AttemptSucceeded(number, *job.attempts[mark])
        # No attempt succeeded. One that arrives late will be refused, because the next attempt sets a new guard.
        if guard in job.seen:
            return
        if job.key is None:
            raise _Undecidable
        if (await self.fetch(((b"HGET", job.keys.keyed, job.key),)))[0] is None:
            job.attempts.clear()

    async def _commit(self, job: Job, transaction: Transaction, result: Any) -> None:
        """Commit a transaction.

        Raises:
            _Conflict: data that the transaction depends on have changed, so the job must be run again.
            OutcomeUnknown: the connection broke, so the commit may or may not have been executed.
        """
        mark = next(self._marks)
        record = transaction.complete()
        guarded = job.keys is not None
        if guarded:
            await self._prepare(transaction)
        keys, arguments = self._encode_commit(transaction, record, mark)
        job.committing = True
        try:
            shares = any(command[0] == "share" for command in transaction.commands)
            answer = await self.nodes.run(_COMMIT_WITH_STATE if shares else _COMMIT, keys, arguments, once=True)
        except OutcomeUnknown:
            if guarded:
                job.attempts[mark] = (result, transaction.news)
                job.seen.add(transaction.guard)
            raise
        if answer[0]:
            self._reset_after_conflict(job, answer)
            await asyncio.sleep(random.uniform(0, 0.002) if job.is_optimistic else 0)  # noqa: S311  # spreads retries
            raise _Conflict
        if guarded:
            await self._deliver(transaction.keys, answer[1], transaction.news)
            await self._discard(transaction.keys.tenant, transaction.obsolete)
            self._remember(transaction, answer[1] + b"." + mark)

    def _reset_after_conflict(self, job: Job, answer: Sequence[Any]) -> None:
        job.reset()
        if answer[0] == _STALE and not job.attempts:
            job.head, job.is_optimistic = answer[1], True

    async def _deliver(self, scope: ScopeKeys, number: bytes, news: Sequence[News]) -> None:
        """In a cluster, deliver the news of a write to the tenant's indexes. On a single server the commit includes them."""
        if self.nodes.is_cluster and news:
            await self.outbox.deliver(scope, number, news)

    async def _discard(self, tenant: str, obsolete: Sequence[Argument]) -> None:
        """Remove obsolete ids of memories, and obsolete owners, from the tenant's keys."""
        keys = self.keys.tenant(tenant)
        for at in range(0, len(obsolete), MAX_ARGUMENTS):
            try:
                await self.nodes.run(
                    _DISCARD, [keys.memory_ids, keys.memory_owners], obsolete[at : at + MAX_ARGUMENTS], once=False
                )
            except StoreError:  # readers check whether the memories exist
                return

    async def _prepare(self, transaction: Transaction) -> None:
        """Write the data that must be in the tenant's slot before the transaction is committed."""
        for listing in (False, True):  # the token of a listing must be there before the listing
            some = [command for command in transaction.tenant_commands if (command[0] == b"ZADD") == listing]
            await asyncio.gather(*(self.nodes.call(get_key(command), command) for command in some))
        tenant = transaction.keys.tenant
        if transaction.is_new and tenant not in self._tenants:
            await self.nodes.call(self.keys.tenants, (b"ZADD", self.keys.tenants, 0, tenant))
            if len(self._tenants) > MOST_TENANTS:
                self._tenants.clear()
            self._tenants.add(tenant)
        if self.nodes.is_cluster and transaction.keys.user_id:
            await self.outbox.mark_user(transaction.keys)

    def _encode_commit(
        self, transaction: Transaction, record: bytes, mark: bytes
    ) -> tuple[list[bytes], list[Argument]]:
        """Return the keys and arguments of the commit script; see `commit.lua`."""
        keys, places, checks, commands = transaction.keys, dict[bytes, int](), transaction.checks, transaction.commands
        base, first, guarded = "", 0, 0
        if keys is not None:
            places = {keys.head: 1, keys.clock: 2}
            checks = [(keys.head, b"g", transaction.guard), *checks]
            if transaction.moved_to is not None:
                guarded = places.setdefault(transaction.moved_to.head, 3)
            elif transaction.record is not None or not isinstance(keys, SessionKeys):
                guarded = 1
            news = transaction.news
            if not self.nodes.is_cluster:
                base = self.keys.tenant(keys.tenant).base if news else ""
                commands = [*commands, *((kind, b"", name, *rest) for kind, name, rest in news)]
            else:
                commands = [*commands, *(("note", keys.outbox, one[0] + one[1], encode_news(one)) for one in news)]
        checked: list[Argument] = []
        for key, field, value in checks:
            checked += (places.setdefault(key, len(places) + 1), field, b"-" if value is None else b"=" + value)
        flat = flatten(commands, places)
        # The types of these keys were checked by this process's previous write.
        types = "" if transaction.job.is_remembered else "".join(map(_get_key_type, places))
        listed = list(places)
        if transaction.tenant is not None:
            first = len(listed) + 1
            listed += transaction.tenant.indexes
        head = (b"" if keys is None else mark, base, first, int(self.nodes.is_cluster), guarded)
        return listed, [*head, types, record, len(checks), *checked, *flat]

    def _remember(self, transaction: Transaction, guard: bytes) -> None:
        """Remember the session's head, so that this process's next write need not read it."""
        if isinstance(transaction.keys, SessionKeys) and transaction.record and transaction.moved_to is None:
            head = (guard, transaction.record, transaction.profile)
            self._remembered.put(transaction.keys.head, head, len(transaction.profile or b""))

    # -- opening and closing -------------------------------------------------------

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
        """Finish the accepted operations, then close the connections."""
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
        """Warn that the database was never closed."""
        if not self._closed:
            _warn(f"unclosed store {NAME}", ResourceWarning, source=self)
            self.nodes.kill()


def get_key(command: Command) -> bytes:
    """Return a command's key."""
    key = command[1]
    assert isinstance(key, bytes)
    return key


def _get_key_type(key: bytes) -> str:
    """Return the letter for a key's type: `l` for a list, `z` for a sorted set, `h` for a hash."""
    part = key.rpartition(b"}:")[2].partition(b":")[0] if b"}:" in key else key.rpartition(b":")[2]
    return "l" if part == b"log" else "z" if part in _SORTED else "h"
