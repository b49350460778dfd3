"""The part of the store contract about a session's log, and about what is derived from it: views, compactions, ratings.

**Order.** The store gives each entry its `seq`: from 0, gapless over live and retired entries. That is the order. Clocks are
not: equal timestamps and clocks that run backwards change nothing.

**Appending.** `append` is the one primitive that grows a log, and is O(what is appended); nothing reads or rewrites a whole
session. Concurrent appends without `expect` all succeed, one after the other. With `expect` one of several wins and the others
get `StaleSession`.

**Retiring.** `retire_from=n` retires the live entries with `seq >= n`: they stay in the log, with `retired_by` the `seq`
that the first appended entry gets. The live path is what is not retired. Running totals, digests, units and turns of
appended entries follow the live path (`holdfast.domain.log.extend` after `rewind`).

**Idempotency.** `append` with an `idempotency_key` that the session has seen writes nothing and returns what the first
call returned, with `replayed` true; with another `fingerprint` it raises `IdempotencyConflict`. Keys live as long as
their session. The session of a replay is the present one; `version` is that of the first call.

**Claims.** A write with a `claim` is refused with `SessionBusy` while the claim of another holder has not expired at the
write's `timestamp`. Otherwise the session has the new claim; it stays wanted if the same holder's claim was wanted. `release`
ends the claim of that holder, and leaves another's. A write with both is checked like one with a claim alone, and ends it. A
write without either neither needs nor changes a claim. A write that brings only a claim or a release changes neither version
nor times. `SessionStore.want` marks a claim, so that its holder learns of it with its next write or read.

**Media.** What `Append.media` and `replace` bring is kept once per session, by its SHA-256, in the same transaction as the
entries whose `NewEntry.media` name it. An entry may name what the session has or the write brings, else it is
`InvalidMessage`; what no entry of a write names is not kept. Contents are deleted with the last entry that names them: by
`erase`, also of a retired entry and off the disk as its text is, by `replace` and by `remove`. `Session.bytes` does not count them.

**Views.** A view's saved state is deleted when an entry it may have seen is retired, erased, pinned or unpinned, or the
log is replaced: the write that does so drops all views of the session, except those it saves itself. Saving a view with
an append does not change the version, or `updated_at`, by itself; saving one for a session that is gone is `SessionNotFound`.
A write that saves views and has no entries, calls or compactions leaves the `VIEWS_KEPT` that were saved last.

**Compactions.** At most one compaction of a view is live; `window` returns it with the view. Laying another one of the view
makes it superseded. Ids go up with every compaction that is recorded, failed attempts included.

- Retiring or erasing an entry of its range makes a live or superseded one dead, and the newest of its view that is still
  superseded becomes live again; dropping one does the same. Erasing removes text, report and error of every one whose range
  holds the entry, whatever its status, off the disk too. Pins and importance change nothing.
- One is dead on arrival, and nothing is superseded, when what it was made from has changed: its last entry is not on
  the live path; or something was erased, a compaction dropped, or another one of its view laid, after its `built_at`; or
  its range does not include that of the live one. `Appended.compactions` reports it. A view of the same key in the same write is
  not saved then; and a view worked out before its live compaction was laid is never saved after it.
- A write that lays one adds one to the session's version, so that callers that remember the session read it again; by itself it
  does not change `updated_at`. Failed attempts are like saved views: by themselves they change neither. Saved views stay: one
  that was saved before a compaction was laid does not include it.
- Of a session the newest `COMPACTIONS_KEPT` are kept that are superseded, dropped or dead, and the newest `FAILURES_KEPT` that
  failed; laying and recording delete the rest. `replace` and `remove` delete all; ids then begin anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.fact_choices import Choice
from holdfast.domain.session import (
    Claim,
    Entry,
    ModelCall,
    NewCompaction,
    NewEntry,
    Session,
    SessionRef,
    StoredCompaction,
)


class SavedView(msgspec.Struct, frozen=True, gc=False):
    """What a view has worked out so far, so that building its working set need not read the log again."""

    frontier: int
    """Entries from this `seq` on are read to build the working set."""
    state: bytes
    """Opaque to the store."""
    keep: tuple[int, ...] = ()
    """Entries before the frontier that are read too: the anchor, pins, what a strategy kept."""
    built_at: int | None = None
    """The session's version when it was worked out: one from before the last retirement, erasure or change of a pin is
    not saved. None: worked out in the write that saves it. Not read back."""


class Append(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One write to a log."""

    entries: Sequence[NewEntry] = ()
    """An `OldEntry` that was erased stays so."""
    timestamp: int
    """Milliseconds: becomes the session's `updated_at`."""
    expect: int | None = None
    """The version the log must be at; None: any."""
    identity: str | None = None
    """The session it is meant for; another one of its name is `SessionNotFound`. None: the one that has the name."""
    retire_from: int | None = None
    state_delta: Mapping[str, Any] | None = None
    """Changes of the state, by key with the prefix of its scope, in order; see `holdfast.domain.state.Change` and
    `holdfast.stores.state`."""
    state_expect: Mapping[str, Any] | None = None
    """The values that some keys of the session's own state must have (None: no value), else `StaleState`: compare-and-set."""
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
    """The result of a write."""

    session: Session
    """The session after it; of a replay, the present session."""
    entries: tuple[Entry, ...]
    """The entries written, by this call or by the first one with its idempotency key, as they are now."""
    version: int
    """The session's version after the write: of a replay, after the first one."""
    start: int = 0
    """The `seq` of the first of them, or where there is none, that the next one gets: of a replay, of the first write."""
    replayed: bool = False
    compactions: tuple[StoredCompaction, ...] = ()
    """The compactions that were recorded, each with its status."""
    reopened: bool = False
    """Whether the session was closed before."""
    ended: bool = False
    """Whether it took the place of a session that it ended."""


class WindowRows(msgspec.Struct, frozen=True, gc=False):
    """What a store returns for building a working set."""

    session: Session
    view: SavedView | None
    """The view's saved state; None when there is none, and then `entries` is the whole live path."""
    head: tuple[Entry, ...]
    """The entries that the view's `keep` names, in order of `seq`; empty without a view."""
    entries: tuple[Entry, ...]
    """The live path from the view's frontier on."""
    compaction: StoredCompaction | None = None
    """The view's live compaction. The saved view may be older and not include it."""


class LogStore(Protocol):
    """Append to logs, read them, and keep what is derived from them. The module says what all methods promise."""

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """Write to a log.

        Raises `SessionNotFound`, `StaleSession`, `IdempotencyConflict`, `SessionBusy`, `StaleState`; and with `ttl` `SessionExpired`
        for a session that was idle for too long and has not ended yet. A write that only saves views and compactions is no use
        of the session, and never refused so.
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
        """Return entries with `start <= seq < stop`, in order of `seq`, at most `limit` of them.

        Args:
            ref: which session.
            start: the lowest `seq`.
            stop: the `seq` before which to stop; None: the end of the log.
            limit: None: all of them.
            descending: newest first; with `limit`, the last ones of the range.
            retired: with the retired ones; otherwise the live path.
        """
        ...

    async def window(self, ref: SessionRef, view: str | None) -> WindowRows:
        """Return all that building a working set reads, seen at one moment.

        Args:
            ref: which session.
            view: the view key; None reads the whole live path.
        """
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
        """Set a caller's annotations of an entry; None leaves them. Drops the session's views. Raises `EntryNotFound`.

        Args:
            ref: which session.
            seq: which entry; it must be live.
            pinned: whether it stays in the prompt.
            importance: its rating.
            refused_by, facts: kept in the metadata, see `holdfast.domain.refusals` and `fact_choices`; empty removes them.
        """
        ...

    async def rate(self, ref: SessionRef, importances: Mapping[int, float]) -> int:
        """Set the importance of those entries that are live and have none yet; return how many were set.

        This is for a scorer's results: what a caller set stays. Neither the version nor a view changes. Raises `SessionNotFound`.

        Args:
            ref: which session.
            importances: by `seq`; at most `PAGE`, else `TooLarge`.
        """
        ...

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        """Replace an entry's content by `holdfast.domain.log.erase_content`. Its digest stays, so the chain still holds.

        SQLite removes it from its files at once; a server's own disk keeps dead rows until it cleans up (docs/storage.md).
        Its metadata is removed as well, since it may quote the content. A retired entry can be erased too. Drops the session's
        views; later running totals follow. Raises `EntryNotFound`.

        Args:
            ref: which session.
            seq: which entry.
            tokens: of what stays, counted by the caller; None keeps the old count.
        """
        ...

    async def compactions(
        self, ref: SessionRef, *, view: str | None = None, live: bool = False
    ) -> tuple[StoredCompaction, ...]:
        """Return the session's compactions in order of id: of all views or one, all of them or the live ones."""
        ...

    async def drop_compaction(self, ref: SessionRef, id: int, *, timestamp: int) -> StoredCompaction:  # noqa: A002 - its name in the API
        """Drop a live or superseded compaction, and return it. Drops the session's views.

        Raises `CompactionNotFound`, also for one that is dropped, dead or failed already.

        Args:
            ref: which session.
            id: the compaction's.
            timestamp: milliseconds; becomes the session's `updated_at`.
        """
        ...

    async def calls(self, ref: SessionRef, *, limit: int = 100, turn_id: int | None = None) -> tuple[ModelCall, ...]:
        """Return the session's recorded model calls, of all turns or one, newest first."""
        ...

    async def media(self, ref: SessionRef, hashes: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Return contents by their SHA-256, without those that the session does not have. Raises `SessionNotFound`."""
        ...
