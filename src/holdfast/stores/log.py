"""The part of the store contract about a session's log and what is derived from it: views, compactions, ratings.

**Order.** The store gives each entry its `seq`: from 0, without gaps, counting live and retired entries. `seq` is the order. Timestamps
are not: equal timestamps, and clocks that run backwards, change nothing.

**Appending.** Only `append` grows a log. It costs O(what is appended); nothing reads or rewrites a whole session. Concurrent appends
without `expect` all succeed, one after the other. Of several with the same `expect`, one succeeds and the others get `StaleSession`.

**Retiring.** `retire_from=n` retires the live entries with `seq >= n`: they stay in the log, and their `retired_by` is the `seq`
of the first appended entry. The live path is what is not retired. Running totals, digests, units and turns of appended entries
continue from the live path (`holdfast.domain.log.extend` after `rewind`).

**Idempotency.** `append` with an `idempotency_key` that the session has seen writes nothing. It returns what the first call returned,
with `replayed` true, or raises `IdempotencyConflict` if the `fingerprint` differs. Keys live as long as their session. The session in a
replay is the present one; `version` is that of the first call.

**Claims.** A write with a `claim` raises `SessionBusy` while the claim of another holder has not expired at the write's `timestamp`.
Otherwise the session gets the new claim; if the same holder's earlier claim was marked as wanted, the new one is too. `release` ends only the claim
of that holder. A write with both is checked like one with only a claim, and ends the claim. A write with neither ignores
claims. A write that has nothing but a claim or a release changes neither version nor times. `SessionStore.want` marks a claim as wanted,
and its holder sees that with its next write or read.

**Media.** Contents in `Append.media` and in `replace` are stored once per session, by SHA-256, in the same transaction as the
entries whose `NewEntry.media` name them. An entry may name a content that the session has or the write brings, else it is
`InvalidMessage`; a content that no entry of the write names is not stored. Contents are deleted with the last entry that names them: by
`erase` (for retired entries too, and removed from the disk like its text), by `replace` and by `remove`. `Session.bytes` does not count
them.

**Views.** A view's saved state is deleted when an entry that it may include is retired, erased, pinned or unpinned, or when the
log is replaced. The write that does this drops all views of the session, except those that it saves itself. Saving a view with
an append does not change the version or `updated_at` by itself; saving one for a session that is gone is `SessionNotFound`.
A write that saves views and has no entries, calls or compactions keeps only the `VIEWS_KEPT` that were saved last.

**Compactions.** At most one compaction of a view is live; `window` returns it with the view. Recording another one of the view
makes it superseded. Ids increase with every compaction that is recorded, failed attempts included.

- Retiring or erasing an entry of its range makes a live or superseded compaction dead; dropping it makes it dropped. In each case the
  newest of its view that is still superseded becomes live again. Erasing removes text, report and error of every compaction whose
  range holds the entry, whatever its status, and from the disk too. Pins and importance change nothing.
- A compaction is dead on arrival, and supersedes nothing, if its source has changed. Its last entry must be on the live path.
  Nothing may have been erased, no compaction dropped, and no other one of its view recorded after its `built_at`. Its range must
  include that of the live one. `Appended.compactions` reports it. A view of the same key in the same write is then not saved. A view that was computed before its live compaction was recorded is never saved after it.
- A write that records a compaction adds one to the session's version, so that callers that cache the session read it again; by
  itself it does not change `updated_at`. Failed attempts are like saved views: by themselves they change neither. Saved views stay;
  one that was saved before a compaction does not include it.
- A session keeps the newest `COMPACTIONS_KEPT` that are superseded, dropped or dead, and the newest `FAILURES_KEPT` that
  failed; recording one deletes the rest. `replace` and `remove` delete all of them; ids then start again.
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
    """The computed state of a view, so that building its working set need not read the whole log again."""

    frontier: int
    """The frontier: the working set reads all entries from this `seq` on."""
    state: bytes
    """Opaque to the store."""
    keep: tuple[int, ...] = ()
    """Entries before the frontier that are read too: the anchor, pins, and what a strategy kept."""
    built_at: int | None = None
    """The session's version when the state was computed. A state from before the last retirement, erasure or change of a pin is
    not saved. None: computed in the write that saves it. Not returned by reads.
    """


class Append(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One write to a log."""

    entries: Sequence[NewEntry] = ()
    """An `OldEntry` that was erased stays erased."""
    timestamp: int
    """Milliseconds since the epoch; becomes the session's `updated_at`."""
    expect: int | None = None
    """The version the log must be at; None: any."""
    identity: str | None = None
    """The identity that the session must have, else `SessionNotFound`; None: any session of that name."""
    retire_from: int | None = None
    state_delta: Mapping[str, Any] | None = None
    """Changes of the state in order, by key with the prefix of its scope; see `holdfast.domain.state.Change` and
    `holdfast.stores.state`.
    """
    state_expect: Mapping[str, Any] | None = None
    """Compare-and-set: the values that some keys of the session's own state must have (None: no value), else `StaleState`."""
    idempotency_key: str | None = None
    fingerprint: bytes = b""
    """Identifies the request; the same idempotency key with another fingerprint is refused."""
    calls: Sequence[ModelCall] = ()
    """Model calls to record and to add to the session's usage."""
    views: Mapping[str, SavedView] | None = None
    """View states to save, by view key."""
    compactions: Sequence[NewCompaction] = ()
    """Compactions to record, including failed attempts, in order."""
    ttl: int | None = None
    """Milliseconds for a session without a ttl of its own, 0: never. A session that has expired is not written to. None: no check."""
    media: Mapping[bytes, bytes] = {}
    """Contents that the entries name, by SHA-256; those that the session already has may be left out."""
    claim: Claim | None = None
    """The claim of the turn that this write begins or renews."""
    release: str | None = None
    """The holder whose claim this write ends."""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The result of a write."""

    session: Session
    """The session after the write; for a replay, the present session."""
    entries: tuple[Entry, ...]
    """The entries written, by this call or by the first one with its idempotency key, in their present state."""
    version: int
    """The session's version after the write; for a replay, after the first one."""
    start: int = 0
    """The `seq` of the first entry written, or without entries, the next `seq`; for a replay, of the first write."""
    replayed: bool = False
    compactions: tuple[StoredCompaction, ...] = ()
    """The compactions that were recorded, each with its status."""
    reopened: bool = False
    """True if the session was closed before."""
    ended: bool = False
    """True if it replaced a session and ended that."""


class WindowRows(msgspec.Struct, frozen=True, gc=False):
    """The rows needed to build a working set."""

    session: Session
    view: SavedView | None
    """The view's saved state; None if there is none, and then `entries` is the whole live path."""
    head: tuple[Entry, ...]
    """The entries that the view's `keep` names, in order of `seq`; empty without a view."""
    entries: tuple[Entry, ...]
    """The live path from the view's frontier on."""
    compaction: StoredCompaction | None = None
    """The view's live compaction. The saved view may be older and not include it."""


class LogStore(Protocol):
    """Append to logs, read them, and store what is derived from them. The module describes what all methods promise."""

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """Write to a log.

        A write that only saves views and compactions does not count as use of the session and never raises `SessionExpired`.

        Raises:
            SessionNotFound: no such session.
            StaleSession: it is not at the version `expect`.
            IdempotencyConflict: the idempotency key was used with another fingerprint.
            SessionBusy: another holder has claimed it.
            StaleState: its state is not what `state_expect` says.
            SessionExpired: with `ttl`, it was idle for too long and has not ended yet.
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
            ref: the session.
            start: the lowest `seq`.
            stop: the `seq` before which to stop; None: the end of the log.
            limit: maximum number of entries; None: no limit.
            descending: newest first; with `limit`, the last ones of the range.
            retired: include retired entries; otherwise only the live path.
        """
        ...

    async def window(self, ref: SessionRef, view: str | None) -> WindowRows:
        """Return all that building a working set reads, from one moment.

        Args:
            ref: the session.
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
        """Set a caller's annotations of an entry; None leaves one unchanged. Drops the session's views. Raises `EntryNotFound`.

        Args:
            ref: the session.
            seq: the entry; it must be live.
            pinned: whether it stays in the prompt.
            importance: its rating.
            refused_by, facts: stored in the metadata, see `holdfast.domain.refusals` and `fact_choices`; empty removes them.
        """
        ...

    async def rate(self, ref: SessionRef, importances: Mapping[int, float]) -> int:
        """Set the importance of those entries that are live and have none yet; return how many were set.

        For the results of a scorer: a value that a caller set stays. Neither the version nor a view changes. Raises `SessionNotFound`.

        Args:
            ref: the session.
            importances: by `seq`; at most `PAGE`, else `TooLarge`.
        """
        ...

    async def erase(self, ref: SessionRef, seq: int, *, tokens: int | None = None) -> Entry:
        """Replace an entry's content by `holdfast.domain.log.erase_content`. Its digest stays, so that the digest chain stays valid.

        SQLite removes the content from its files at once; a server's disk keeps dead rows until the server cleans up (docs/storage.md).
        The entry's metadata is removed as well, since it may quote the content. A retired entry can be erased too. Drops the session's
        views and adjusts later running totals. Raises `EntryNotFound`.

        Args:
            ref: the session.
            seq: the entry.
            tokens: token count of what stays; None keeps the old count.
        """
        ...

    async def compactions(
        self, ref: SessionRef, *, view: str | None = None, live: bool = False
    ) -> tuple[StoredCompaction, ...]:
        """Return the session's compactions in order of id: of all views or of one, all of them or only the live ones."""
        ...

    async def drop_compaction(self, ref: SessionRef, id: int, *, timestamp: int) -> StoredCompaction:  # noqa: A002 - its name in the API
        """Drop a live or superseded compaction, and return it. Drops the session's views.

        Raises `CompactionNotFound`, also if it is dropped, dead or failed already.

        Args:
            ref: the session.
            id: the compaction's id.
            timestamp: milliseconds since the epoch; becomes the session's `updated_at`.
        """
        ...

    async def calls(self, ref: SessionRef, *, limit: int = 100, turn_id: int | None = None) -> tuple[ModelCall, ...]:
        """Return the session's recorded model calls, of all turns or of one, newest first."""
        ...

    async def media(self, ref: SessionRef, hashes: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Return contents by SHA-256, without those that the session does not have. Raises `SessionNotFound`."""
        ...
