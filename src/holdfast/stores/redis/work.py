"""A working copy: what a job has read, what it has changed so far, and what that comes to as commands.

Steps are run on it from their beginning to their end without waiting. Where they ask for what was not read yet they are
stopped by `Missing`, and run again when it is there: so all that one job reads of a session is of one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from holdfast.stores.logic.steps import Many, Query, Rows, Steps
from holdfast.stores.redis.connection import Argument, Command, Key
from holdfast.stores.redis.keys import Keys, ScopeKeys, SessionKeys, TenantKeys
from holdfast.stores.redis.records import Record, check_record, fitting, packed, record_from

MARKED: Final = 1000
"""Numbers and places that one command has at most: a script takes several thousand arguments."""


class Missing(Exception):  # not an error: an outcome
    """What has to be read before the steps can go on.

    Args:
        commands: how.
        steady: whether it stays as it was read while the rest is read; else all is read again, at one moment.
    """

    def __init__(self, commands: tuple[Command, ...], *, steady: bool) -> None:
        super().__init__(commands)
        self.commands = commands
        self.steady = steady


class Snapshot:
    """Answers that were read, by command."""

    def __init__(self) -> None:
        self.answers: dict[Command, Any] = {}
        self.steady: dict[Command, Any] = {}
        self.read: dict[Any, Any] = {}
        """What was made of steady answers."""
        self.remembered = False
        """Whether the session is as it was remembered, not as it was read."""


def head_command(keys: ScopeKeys) -> Command:
    """What reads a session, or what else is guarded: guard, record, profile."""
    return (b"HMGET", keys.head, b"g", b"r", b"p")


Head = Sequence[Any]
"""Guard, record and profile of what is guarded; the record as bytes, or as it was when it was remembered."""


class State:
    """A session, or a user as far as it has artifacts, in the working copy. Stands for the primary key in rows."""

    __slots__ = (
        "base",
        "compactions",
        "fresh",
        "guard",
        "inserted",
        "keys",
        "profile",
        "record",
        "retired_from",
        "views",
    )

    def __init__(self, keys: ScopeKeys, head: Head) -> None:
        self.keys: Any = keys
        self.guard, record, self.profile = head
        self.base: Record | None = record_from(record) if type(record) is bytes else record
        """Its record as it was read; None where there was none."""
        self.record: Any = self.base
        self.fresh = False
        """Whether a new session stands in place of what was read."""
        self.inserted: dict[int, bytes] = {}
        """Entries that were appended, by `seq`."""
        self.retired_from: int | None = None
        self.views: dict[bytes, bytes] = {}
        """Views that are saved, by key."""
        self.compactions: dict[int, Any] = {}
        """Those that were changed, by id; None: deleted."""

    @property
    def log_is_as_read(self) -> bool:
        """Whether ranges of the log may be read still."""
        return not self.inserted and self.retired_from is None


class Judge(Protocol):
    """Who knows of attempts before this one."""

    def before(self, work: Work, name: str | None) -> None:
        """Stop before a step, or with None before the end, that may not follow."""
        ...

    def behind(self, work: Work) -> None:
        """Stop when what was just read tells enough."""
        ...


class Work:
    """One run of a job's steps.

    Attributes:
        commands: what is to be changed, in order; the first one is refused where a server is full.
        checks: what has to be as it was read: key, field, value.
        news: what the tenant's indexes have to be told: kind, name, arguments.
        guarded: what the job writes to; None where that is not a session.
    """

    def __init__(self, keys: Keys, snapshot: Snapshot, queue: Hashable, *, hopeful: bool, apart: bool) -> None:
        self.keys = keys
        self.queue = queue
        self.hopeful = hopeful
        """Whether to take for granted that an idempotency key was not used, or that what others write does not matter: the
        commit checks it."""
        self.apart = apart
        """Whether users and their tenant may lie on different servers."""
        self.aside: Any = None
        """See `Query.aside`."""
        self.commands: list[Command] = []
        self.checks: list[tuple[bytes, Argument, bytes | None]] = []
        self.news: list[tuple[bytes, bytes, tuple[bytes | int, ...]]] = []
        self.guarded: State | None = None
        self.tenant: TenantKeys | None = None
        self.record = b""
        """The session's record, if it is to be written."""
        self.marks: list[Argument] = []
        """By what its new entries are found, see `matching`."""
        self.moved_to: SessionKeys | None = None
        self.overlay: dict[Any, Any] = {}
        """What was changed of a tenant's, and may be read again."""
        self.before: list[Command] = []
        """What another server is told before the commands are run: if they are not run in the end, nobody minds."""
        self.behind: list[Argument] = []
        """Ids of memories, and whose they were, that it need not know any more behind them."""
        self.read = snapshot.read
        self._snapshot = snapshot

    # -- reading ---------------------------------------------------------------

    def ask(self, *commands: Command) -> list[Any]:
        """The answers to some commands about the guarded session, or whatever is read with it."""
        return self._asked(self._snapshot.answers, commands, steady=False)

    def ask_once(self, *commands: Command) -> list[Any]:
        """The same where it does no harm that it is not of the same moment as the rest."""
        return self._asked(self._snapshot.steady, commands, steady=True)

    @staticmethod
    def _asked(answers: dict[Command, Any], commands: tuple[Command, ...], *, steady: bool) -> list[Any]:
        try:
            return [answers[command] for command in commands]
        except KeyError:
            raise Missing(tuple(one for one in commands if one not in answers), steady=steady) from None

    def state(self, keys: ScopeKeys) -> State:
        """A session as it was read."""
        return State(keys, self.ask(head_command(keys))[0])

    # -- writing ---------------------------------------------------------------

    def do(self, name: str | bytes, key: bytes, *arguments: Argument) -> None:
        """One more command."""
        self.commands.append((name, key, *arguments))

    def check(self, key: bytes, field: Argument, value: bytes | None) -> None:
        """What has to be so still when the commands are run."""
        self.checks.append((key, field, value))

    def tell(self, kind: bytes, name: bytes, *arguments: bytes | int) -> None:
        """What the tenant's indexes have to know. Of the same kind and name the last one counts."""
        self.news.append((kind, name, arguments))

    def of_tenant(self, tenant: str) -> TenantKeys:
        """The tenant's keys; what is written there is guarded by its checks."""
        self.tenant = self.keys.tenant(tenant)
        return self.tenant

    def drive(self, steps: Steps[Any], handlers: Mapping[str, Callable[..., Any]], judge: Judge | None) -> Any:
        """What the steps give, all of them run; `judge` may stop them before and behind each, and before their end."""
        rows: Rows = ()
        try:
            step: Query | Many = next(steps)
            while True:
                if judge is not None:
                    judge.before(self, step.name)
                handler = handlers[step.name]
                if isinstance(step, Many):
                    for row in step.rows:
                        handler(self, *row)
                    rows = ()
                else:
                    self.aside = step.aside
                    rows = handler(self, *step.params) or ()
                if judge is not None:
                    judge.behind(self)
                step = steps.send(rows)
        except StopIteration as stop:
            if judge is not None:
                judge.before(self, None)
            self._finish()
            return stop.value
        finally:
            steps.close()

    @property
    def changes(self) -> bool:
        """Whether there is anything to be written."""
        return bool(self.commands or self.news or self.record)

    # -- what it comes to --------------------------------------------------------

    def _finish(self) -> None:
        """Commands for what is written once, however often it was changed."""
        state = self.guarded
        if state is None or not isinstance(state.keys, SessionKeys):
            return
        if state.record is state.base and not state.fresh:
            return
        if state.record is not None:
            self._write_record(state)
            self._write_marks(state)
        self._place(state)
        if self.moved_to is not None or state.record is None:
            self.do("rest", state.keys.clock)

    def leave(self, state: State) -> None:
        """What was moved stays where it is now, with a guard of its own: a new session takes its old place."""
        moved, self.moved_to = self.moved_to, None
        assert moved is not None
        self.do("leave", moved.head, packed(state.record))
        self._tell(moved, state.record, b"-", b"w")

    def _write_record(self, state: State) -> None:
        keys, record = self.moved_to or state.keys, state.record
        self.record = packed(record)
        if state.fresh:
            self.do("number", keys.head, Key(keys.numbers), keys.id, whose(keys))

    def _write_marks(self, state: State) -> None:
        """By what its new entries are found."""
        keys = state.keys
        for begin in range(0, len(self.marks), MARKED):
            some = self.marks[begin : begin + MARKED]
            self.do("mark", keys.marks, Key(keys.numbers), keys.id, *some)

    def _place(self, state: State) -> None:
        """Keep up the indexes of the user and the tenant."""
        keys, base, record, moved = state.keys, state.base, state.record, self.moved_to
        before, after = flag_of(base, keys.withdrawn), flag_of(record, keys.withdrawn)
        if moved is not None:
            self.do("ZREM", keys.recent, keys.field)
            self._tell(keys, None, before, b"d")
            self._tell(moved, record, b"-", b"w")
        elif before != after or (record is not None and base is not None and _times(base) != _times(record)):
            if not keys.withdrawn and record is None:
                self.do("ZREM", keys.recent, keys.field)
            elif not keys.withdrawn:
                self.do("ZADD", keys.recent, record.updated_at, keys.field)
            self._tell(keys, record, before, after)

    def _tell(self, keys: SessionKeys, record: Record | None, before: bytes, after: bytes) -> None:
        if record is None:
            self.tell(b"s", keys.field, keys.named, b"d", before, 0, 0, 0)
            return
        updated, accessed, expires = fitting(record.updated_at), fitting(record.accessed_at), record.expires_at or 0
        self.tell(b"s", keys.field, keys.named, after, before, updated, accessed, expires)


def _times(record: Record) -> tuple[int, int, int | None]:
    return record.updated_at, record.accessed_at, record.ttl


def flag_of(record: Record | None, withdrawn: str) -> bytes:
    """Which of the tenant's indexes have a session, as `told.s` takes it."""
    if record is None:
        return b"-"
    if withdrawn:
        return b"w"
    if record.status != "active":
        return b"c"
    if record.ttl is None:
        return b"i"
    return b"x" if record.ttl else b"o"


def whose(keys: SessionKeys) -> bytes:
    """What the head of a session says of whose it is: behind its number, where it has one."""
    return packed((keys.tenant, keys.user_id, keys.id, keys.withdrawn))


def changed(state: State, **fields: Any) -> None:
    """Set fields of the session's record."""
    if state.base is not None and state.record is state.base:
        check_record(state.base)
    state.record = msgspec.structs.replace(state.record, **fields)
