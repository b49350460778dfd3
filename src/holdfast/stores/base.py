"""The store contract: what every database promises, in prose. `tests/contract` checks every store.

A `Store` is a handle made with a tenant; no method works without one, and nothing of another tenant can be seen or
told apart from what is not there. A session is named by (tenant, user, id): two users may both have a `support-42`.
Identifiers compare byte for byte: case, trailing spaces, NUL and every Unicode character count.

**Order.** A log's `seq` is given by the store, from 0, gapless over live and retired entries; it is the order. Clocks
are not: equal timestamps and clocks that run backwards change nothing.

**Writing.** Every method that writes is one transaction, all or nothing, and when it returns the write survives the
process and the machine; in Redis, as far as the server's configuration says. A write that raises has written nothing.
`append` is O(what is appended); nothing reads or rewrites a whole session. Concurrent appends without `expect` all
succeed, one after the other; with `expect` one of several wins and the others get `StaleSession`. Every write adds one
to the session's `version`.

**Retiring.** `retire_from=n` retires the live entries with `seq >= n`: they stay in the log, `retired_by` the `seq`
that the first appended entry gets. The live path is what is not retired. Running totals, digests, units and turns of
what is appended follow the live path (`holdfast.domain.log.extend` after `rewind`).

**Idempotency.** `append` with an `idempotency_key` that the session has seen writes nothing and answers what the first
call answered, with `replayed` true; with another `fingerprint` it raises `IdempotencyConflict`. Keys live as long as
their session. A replay's session is the one that stands now; its `version` is that of the first answer.

**Views.** A view's saved state is forgotten when an entry it may have seen is retired, erased, pinned or unpinned, or the
log is replaced: the write that does so drops all views of the session, except those it saves itself. Saving a view with
an append does not change the version, or `updated_at`, by itself; saving one for a session that is gone is `SessionNotFound`.

**Compactions.** At most one of a view is live; it is what `window` gives with the view. Laying another one of the view makes
it superseded. Their ids go up with every one that is recorded, failed attempts included.

- Retiring or erasing an entry of its range makes a live or superseded one dead, and the newest of its view that is still
  superseded becomes live again; dropping one does the same. Erasing takes text, report and error of every one whose range
  holds the entry, whatever its status, off the disk too. Pins and importance change nothing.
- One is dead on arrival, and nothing is superseded, when what it was made from does not hold any more: its last entry is not on
  the live path; or something was erased, a compaction dropped, or another one of its view laid, after its `built_at`; or
  its range does not hold that of the live one. `Appended.compactions` tells. A view of the same key in the same write is
  not saved then; and a view worked out before its live compaction was laid is never saved behind it.
- A write that lays one adds one to the session's version, so that whoever remembers the session reads it again; by itself it
  does not change `updated_at`. Failed attempts are like saved views: by themselves they change neither. Saved views stay: one
  that was saved before a compaction was laid does not know of it.
- Of a session the newest `COMPACTIONS_KEPT` are kept that are superseded, dropped or dead, and the newest `FAILURES_KEPT` that
  failed; laying and recording delete the rest. `replace` and `delete` remove all; ids then begin anew.

**Life.** A session is `active` until it is ended: then it is `closed`, and stays, or it is withdrawn, and gives up its name.
A closed session is active again as soon as an entry is appended. Each session that is made has an `identity` of its own,
as `NewSession` gives it: what is meant for one (`Append.identity`, an artifact, an `Ending`) never reaches another of its name. `accessed_at` is the time of the last write of entries, state
or fields, or of the last `touch`. A withdrawn session is found under its ref alone, is in no list, and its name is free.

- `end` is decided in its transaction: of several callers one ends a session, and none that was used after `idle_since`.
- An end with hooks is recorded with it, as an `Ending`, until it is forgotten; what `settle` noted as delivered stays so.
- Whether an active session has been idle for too long is its reader's to say (`Session.expired`); nothing changes by itself.

**Artifacts** are what `holdfast.stores.artifacts` says. Naming one changes neither the session's version nor its times. They go
with their session, by `delete` and `replace`.

**Matching.** The digest of every visible entry, and every `Entry.alias`, retired entries' too, is found by `sightings` in the
sessions of its user; those of withdrawn sessions are not. Erasing an entry takes its alias away, and leaves its digest.

**Media.** What `Append.media` and `replace` bring is kept once a session, by its SHA-256, in the same transaction as the entries
whose `NewEntry.media` name it. An entry may name what the session has or the write brings, else it is `InvalidMessage`; what no
entry of a write names is not kept. Contents go with the last entry that names them: by `erase`, of a retired entry too, off the
disk as its text does, by `replace` and by `delete`. `Session.bytes` does not count them.

**State** that sessions share is what `holdfast.stores.state` says; **origins** are what `holdfast.stores.origins` says, and go with their session, by `delete` and `replace`.

**Memories** are what `holdfast.stores.memories` says. They belong to no session: `delete`, `replace` and moving one leave them.

**Claims.** A write with a `claim` of its own is refused with `SessionBusy` while another holder's claim has not expired at its
`timestamp`; else the session's claim is that, still wanted if it was that holder's already. `release` ends the claim of that
holder, and does nothing to another's. A write with both is refused like one with a claim alone, and ends it. A write without
either neither needs nor changes a claim. A write that brings a claim or a release and nothing else changes neither
version nor times. `want` marks a claim, so that its holder learns of it with its next write or look.

**Leases and what was learned** belong to a tenant. Of several callers, in any number of processes, one gets a lease, until it
expires by the clock of the next who asks, or is released; expired ones are forgotten in the end.

**Reading.** Reads see every write that was acknowledged before they began. They cost what they return, at any length
of the session. A read does not keep a session alive.

**Cancellation.** A cancelled write is either done or not, never half; the handle stays usable, and no other caller
ever gets its result.

**Limits** are those of `holdfast.limits`. An identifier that is empty or too long, or not Unicode, is `InvalidRequest`; a
message, metadata, state or system messages that are too large are `TooLarge`, and a message that cannot be written as JSON,
or whose turn is before the log's, is `InvalidMessage`.

**Time** is never read by a store: timestamps come in arguments.

**Foreign errors** do not leak: a full disk, a lost connection or a file that is no database is a `StoreError`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.fact_choices import Choice
from holdfast.domain.history import Past
from holdfast.domain.messages import Message
from holdfast.domain.origins import Origin
from holdfast.domain.session import (
    Claim,
    Ending,
    Entry,
    ModelCall,
    NewCompaction,
    NewEntry,
    Removed,
    Session,
    SessionRef,
    StoredCompaction,
)
from holdfast.stores.artifacts import ArtifactStore
from holdfast.stores.keys import KeyStore
from holdfast.stores.life import LifeStore
from holdfast.stores.matching import MatchingStore
from holdfast.stores.media import MediaStore
from holdfast.stores.memories import MemoryStore
from holdfast.stores.origins import OriginStore
from holdfast.stores.state import StateStore

FOREVER: Final = (1 << 53) - 1
"""A time of `Store.learn` that nothing is newer than: what is kept with it is never trimmed."""


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session about to be made."""

    id: str
    user_id: str
    timestamp: int
    """Milliseconds since the epoch."""
    agent: str | None = None
    identity: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)
    """See `Session.identity`."""
    system_messages: tuple[Message, ...] = ()
    state: dict[str, Any] = msgspec.field(default_factory=dict)
    """Keys with `user:` and `app:` are written to those scopes; of one that `replace` installs they are refused."""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    ttl: int | None = None
    past: Past | None = None
    """What it has behind it; of one that `replace` installs. None: nothing."""
    origins: tuple[Origin, ...] = ()
    """Where its entries come from, if it is installed as a copy; see `holdfast.domain.origins`."""

    @property
    def ref(self) -> SessionRef:
        """Which session it will be."""
        return SessionRef(self.user_id, self.id)


class SavedView(msgspec.Struct, frozen=True, gc=False):
    """What a view has worked out so far, so that building its working set need not read the log again."""

    frontier: int
    """Entries from this `seq` on are read to build the working set."""
    state: bytes
    """Opaque to the store."""
    keep: tuple[int, ...] = ()
    """Entries before the frontier that are read too: the anchor, pins, what a policy kept."""
    built_at: int | None = None
    """The session's version when it was worked out: one from before the last retirement, erasure or change of a pin is
    not saved. None: worked out in the write that saves it. Not read back."""


class SessionPatch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a session's own fields; UNSET leaves a field as it is."""

    agent: str | None | UnsetType = UNSET
    system_messages: tuple[Message, ...] | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    """Replaces the whole of it."""
    state: dict[str, Any] | UnsetType = UNSET
    """Changes as in `Append.state_delta`."""
    ttl: int | None | UnsetType = UNSET


class Append(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One write to a log."""

    entries: Sequence[NewEntry] = ()
    """An `OldEntry` that was erased stays so."""
    timestamp: int
    """Milliseconds: becomes the session's `updated_at`."""
    expect: int | None = None
    """The version the log must be at; None: any."""
    identity: str | None = None
    """The session it is meant for; another one of its name is `SessionNotFound`. None: whichever has the name."""
    retire_from: int | None = None
    state_delta: Mapping[str, Any] | None = None
    """Changes of the state, by key with the prefix of its scope, in order; see `holdfast.domain.state.Change` and
    `holdfast.stores.state`."""
    state_expect: Mapping[str, Any] | None = None
    """What must stand under some keys of the session's own state (None: nothing), else `StaleState`: compare-and-set."""
    idempotency_key: str | None = None
    fingerprint: bytes = b""
    """What the key stands for; the same key with another one is refused."""
    calls: Sequence[ModelCall] = ()
    """Model calls to record and to add to the session's usage."""
    views: Mapping[str, SavedView] | None = None
    """View states to save, by view key."""
    compactions: Sequence[NewCompaction] = ()
    """Compactions to lay, and attempts at one that failed, in order."""
    ttl: int | None = None
    """Milliseconds for a session without one of its own, 0: never; one that has expired is not written to. None: any is."""
    media: Mapping[bytes, bytes] = {}
    """Contents that the entries name, by their SHA-256; those that the session has may be left out."""
    claim: Claim | None = None
    """The turn that this opens, or renews."""
    release: str | None = None
    """The holder whose turn this ends."""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """What a write did."""

    session: Session
    """The session after it; of a replay, the session as it stands now."""
    entries: tuple[Entry, ...]
    """The entries written, by this call or by the first one with its idempotency key, as they stand now."""
    version: int
    """The session's version after the write: of a replay, after the first one."""
    start: int = 0
    """The place of the first of them, or where there is none, that the next one has: of a replay, of the first write."""
    replayed: bool = False
    compactions: tuple[StoredCompaction, ...] = ()
    """The compactions that were recorded, each with what became of it."""
    reopened: bool = False
    """Whether the session was closed before."""
    ended: bool = False
    """Whether it took the place of one that ended by that."""


class SessionPage(msgspec.Struct, frozen=True):
    """Some sessions and whether there are more."""

    sessions: tuple[Session, ...]
    has_more: bool


class Store(
    ArtifactStore, KeyStore, LifeStore, MatchingStore, MediaStore, MemoryStore, OriginStore, StateStore, Protocol
):
    """A store handle of one tenant. See the module for what all methods promise."""

    tenant: str

    @property
    def durable(self) -> bool:
        """Whether what is written outlives the process: then a session that ends is closed, and not lost."""

    def for_tenant(self, tenant: str) -> Store:
        """A handle of another tenant on the same opened database: cheap, nothing is opened.

        The handle that `open_store` gave owns the database: closing it closes all. Closing another closes only that.
        """
        ...

    async def create(self, new: NewSession) -> Session:
        """Make a session with an empty log. Raises `SessionExists`."""
        ...

    async def get(self, ref: SessionRef) -> Session:
        """The session without its log. Raises `SessionNotFound`."""
        ...

    async def find(self, session_id: str) -> Session:
        """The one session of that id among all users of the tenant.

        Raises `SessionNotFound`, or `AmbiguousSession` when several users have one.
        """
        ...

    async def list(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        now: int | None = None,
        ttl: int | None = None,
        limit: int = 20,
        after: SessionRef | None = None,
        descending: bool = True,
    ) -> SessionPage:
        """Sessions by `updated_at` (ties by user, then id), newest first unless told otherwise.

        Args:
            status: `active` or `closed`. With `now` and `ttl` an active one that has expired counts as closed; see
                `Session.expired`. Its row says `active` all the same.
            now: milliseconds since the epoch.
            ttl: milliseconds.
            after: continue behind this session, wherever it stands now; `SessionNotFound` when it is gone.
            limit: 1 to `PAGE`.
        """
        ...

    async def update(
        self, ref: SessionRef, patch: SessionPatch, *, timestamp: int, expect: int | None = None
    ) -> Session:
        """Change a session's own fields. Raises `SessionNotFound`, `StaleSession`."""
        ...

    async def delete(self, ref: SessionRef) -> bool:
        """Remove a session and all that belongs to it; whether there was one."""
        ...

    async def remove(
        self, ref: SessionRef, *, expect: int | None = None, artifacts: int | None = None
    ) -> Removed | None:
        """The same; what there was, None when there was nothing.

        Nothing is removed where it is not of version `expect`, `StaleSession`, or has not that many versions of artifacts, `Conflict`.
        """
        ...

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """The one primitive that grows a log.

        Raises `SessionNotFound`, `StaleSession`, `IdempotencyConflict`; and, asked with `ttl`, `SessionExpired` for one that was
        idle for too long and was not ended yet. What saves views and compactions alone is no use, and never refused so.
        """
        ...

    async def replace(
        self,
        new: NewSession,
        entries: Sequence[NewEntry],
        *,
        fresh: bool = False,
        ending: Ending | None = None,
        media: Mapping[bytes, bytes] = {},
    ) -> Appended:
        """Install a session whole, in place of one of the same name if there is one.

        Nothing of the old one stays, except that its version goes on by one: what expects it is stale.

        Args:
            new: with a `past`, its times, end, usage and calls are those; it is used at `timestamp`.
            entries: the log from its beginning; an `OldEntry` may be retired or erased in it.
            fresh: raise `SessionExists` when there is one.
            ending: the one that is there is withdrawn by it instead, unless it was used since `ended_at`.
            media: contents that the entries name, by their SHA-256.
        """
        ...

    async def want(self, ref: SessionRef, holder: str) -> None:
        """Ask the holder of the session's claim to stop; nothing happens when another holder has it. Raises `SessionNotFound`."""
        ...

    async def annotate(
        self,
        ref: SessionRef,
        seq: int,
        *,
        pinned: bool | None = None,
        importance: float | None | UnsetType = UNSET,
        refused_by: Mapping[str, str] | None = None,
        facts: Mapping[int, Choice] | None = None,
    ) -> Entry:
        """Set what callers say of an entry; None leaves it. Views of the session are forgotten. Raises `EntryNotFound`.

        Args:
            refused_by, facts: kept in the metadata, see `holdfast.domain.refusals` and `fact_choices`; empty removes them.
        """
        ...

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        """Replace an entry's content by `holdfast.domain.log.erased`. Its digest stays, so the chain holds.

        SQLite takes it out of its files at once; a server's own disk keeps dead rows until it cleans up (docs/storage.md).
        Its metadata goes as well: it may quote the content. A retired entry can be erased too. Views of the session
        are forgotten; later running totals follow. Raises `EntryNotFound`.

        Args:
            tokens: of what stays, counted by the caller; None keeps the old count.
        """
        ...

    async def rate(self, ref: SessionRef, importances: Mapping[int, float]) -> int:
        """Set the importance of those of the entries that are live and have none yet; how many were set.

        A scorer's result: what a caller said stands. Neither the version nor a view changes. Raises `SessionNotFound`.

        Args:
            importances: by `seq`; at most `PAGE`, else `TooLarge`.
        """
        ...

    async def drop_compaction(self, ref: SessionRef, id: int, *, timestamp: int) -> StoredCompaction:  # noqa: A002 - what it is called
        """Take a live or superseded compaction away; as it is then. Views of the session are forgotten.

        Raises `CompactionNotFound`, of one that is dropped, dead or failed already too.

        Args:
            id: the compaction's.
            timestamp: milliseconds; becomes the session's `updated_at`.
        """
        ...

    async def entries(
        self,
        ref: SessionRef,
        *,
        start: int = 0,
        stop: int | None = None,
        limit: int | None = None,
        descending: bool = False,
        retired: bool = False,
    ) -> tuple[Entry, ...]:
        """Entries with `start <= seq < stop`, in order of `seq`, at most `limit` of them.

        Args:
            limit: None: all of them.
            descending: newest first; with `limit`, the last ones of the range.
            retired: with the retired ones; otherwise the live path.
        """
        ...

    async def window(self, ref: SessionRef, view: str | None) -> WindowRows:
        """All that building a working set reads, seen at one moment.

        Args:
            view: the view key; None reads the whole live path.
        """
        ...

    async def compactions(
        self, ref: SessionRef, *, view: str | None = None, live: bool = False
    ) -> tuple[StoredCompaction, ...]:
        """The session's compactions in order of id; of one view, or only the live ones, if asked."""
        ...

    async def calls(self, ref: SessionRef, *, limit: int = 100, turn_id: int | None = None) -> tuple[ModelCall, ...]:
        """The session's recorded model calls, newest first; those of one turn if asked."""
        ...

    async def lease(self, name: str, holder: str, *, now: int, until: int) -> bool:
        """Take the tenant's lease of that name, or renew it; whether `holder` has it now.

        One that has expired at `now` is taken over. A holder renews in time, and stops when that fails.

        Args:
            name: what is leased, an identifier.
            holder: who asks, an identifier that nobody else uses.
            now: milliseconds since the epoch.
            until: when it expires: after `now`, by at most `LEASE_MILLISECONDS`.
        """
        ...

    async def leased_by(self, name: str, *, now: int) -> str | None:
        """Return who has the tenant's lease of that name; None if nobody does, or it has expired at `now`."""
        ...

    async def release(self, name: str, holder: str) -> None:
        """Give a lease back; nothing happens when `holder` does not have it."""
        ...

    async def learned(self, model: str) -> bytes | None:
        """What the tenant keeps of a model; None when there is nothing."""
        ...

    async def learn(self, model: str, data: bytes, *, timestamp: int, expect: bytes | None) -> bool:
        """Keep `data` of a model in place of `expect`; False, and nothing written, when something else stands there.

        The newest `LEARNED_MODELS` of a tenant are kept; see `FOREVER`.

        Args:
            model: an identifier.
            data: opaque; at most `LEARNED_BYTES`, else `TooLarge`.
            timestamp: milliseconds since the epoch.
            expect: what `learned` gave; None: nothing.
        """
        ...

    async def ping(self) -> None:
        """Return when the store can be read and has written something. Raises `StoreUnavailable`."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, then let go of everything. Closing twice is fine."""
        ...


class WindowRows(msgspec.Struct, frozen=True, gc=False):
    """What a store gives for building a working set."""

    session: Session
    view: SavedView | None
    """The view's saved state; None when there is none, and then `entries` is the whole live path."""
    head: tuple[Entry, ...]
    """The entries that the view's `keep` names, in order of `seq`; empty without a view."""
    entries: tuple[Entry, ...]
    """The live path from the view's frontier on."""
    compaction: StoredCompaction | None = None
    """The view's live compaction. The saved view may be older, and not know of it."""
