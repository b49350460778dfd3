"""The part of the store contract about a session's log, and about data derived from it: views, compactions, ratings.

**Order.** The store numbers the entries of a log: `seq` counts from 0 without gaps, retired entries included. Only `seq`
defines the order. Equal timestamps, and clocks that run backwards, change nothing.

**Appending.** Only `append` makes a log longer. Its cost depends on what is appended: it never reads or rewrites a whole
session. Concurrent appends without `expect` all succeed, one after the other. Of several appends with the same `expect`, one
succeeds and the others raise `StaleSession`.

**Retiring.** An append with `retire_from=n` retires the live entries with `seq >= n`. They stay in the log, and their
`retired_by` is the `seq` of the first appended entry. The live path is the sequence of entries that are not retired. Running
totals, digests, units and turns of appended entries continue from the live path (`holdfast.domain.log.extend` after `rewind`).

**Notes.** An entry with the role `note` is not a message. It is never on the live path, and changes neither its totals, digests,
units and turns nor `Session.messages`; its `retired_by` is its own `seq`. An append with `retire_from=n` also retires the notes with
`seq >= n`, and they then get the same `retired_by` as messages. Only `entries` with `retired` or `notes` returns notes.

**Idempotency.** If an `append` has the `idempotency_key` of an earlier append to the session, it writes nothing. It returns the
result of the earlier append, with `replayed` true, or raises `IdempotencyConflict` if the `fingerprint` differs. In such a
replay, `Appended.session` is the session as it is now, and `Appended.version` is the version after the first append. A
session's idempotency keys are stored as long as the session itself.

**Keys of turns.** If an `append` has a `key`, it opens the turn of this key, which is unique in its tenant and user. If a turn has the key
already, the write raises `StaleSession`, and `find_turn` returns that turn. A key without a name, of which there is only the fingerprint,
is that of the last turn that has it, and it is deleted when an entry of the session is erased. The keys of removed and withdrawn sessions
that have a name stay known, so that `find_turn` says that there was a turn, until `sweep_turn_keys` has dropped them.

**Claims.** A claim is the right to run a turn of a session. A session has at most one.

- A write with a `claim` raises `SessionBusy` if the session has a claim of another holder that has not expired at the write's
  `timestamp`. Otherwise the session gets the new claim. If the same holder's earlier claim was marked as wanted, so is the
  new one.
- A write with a `release` ends the session's claim if the claim belongs to the holder named in `release`.
- A write with both is checked like a write with a claim, and then ends the claim.
- A write with neither ignores claims.
- A write that contains nothing but a claim or a release changes neither the session's version nor its times.
- `SessionStore.want` marks a claim as wanted. The holder sees the mark with its next write or read.

**Media** are contents that entries refer to. Those in `Append.media`, and in the `media` of `replace`, are stored once per
session under their SHA-256, in the same transaction as the entries whose `NewEntry.media` refers to them. An entry may refer to
a content that the session already has, or that is part of the write; any other reference raises `InvalidMessage`. A content to
which no entry of the write refers is not stored. A content is deleted together with the last entry that refers to it: by
`erase` (of retired entries too, and from the disk, like the entry's text), by `replace` and by `remove`. `Session.bytes` does
not include contents.

**Views.** A view is the selection of a session's entries that one agent, with its strategy and budget, sends to a model. The list
of messages for one model call is the working set. Saved states of views (`SavedView`) make it faster to build a working set.
The saved states of a session's views are deleted when an entry is retired, erased, pinned or unpinned, and when the log is
replaced. If the same write also saves views, those are kept. Saving a view with an append does not by itself change the
version or `updated_at`. Saving a view of a session that was removed raises `SessionNotFound`. A write that saves
views and has no entries, calls or compactions deletes all but the `VIEWS_KEPT` views that were saved last.

**Compactions.** A compaction is a text that replaces a range of entries in a view. At most one compaction of a view is live;
`window` returns it with the view. When another compaction of the view is recorded, the live one becomes superseded. Ids
increase with every recorded compaction, failed attempts included.

- A live or superseded compaction becomes dead when an entry of its range is retired or erased, and dropped when
  `drop_compaction` is called for it. If the view then has no live compaction, its newest superseded one becomes live again.
  Erasing an entry also removes the text, report and error of every compaction whose range includes the entry, whatever its
  status, and from the disk too. Pins and importance change no compaction.
- A new compaction is live only if what it was made from has not changed: its last entry must be on the live path, and its range
  must include the range of the view's live compaction. In addition, after the compaction's `built_at`, no entry may have been
  erased, no compaction dropped, and no other compaction of the view recorded. Otherwise the compaction is recorded as dead and
  supersedes nothing. `Appended.compactions` shows the status. If the compaction is dead, the same write does not save its view. A
  view that was computed before its live compaction was recorded is never saved afterwards.
- A write that records a compaction adds one to the session's version, so that callers with a cached session read the session
  again. If the write does nothing else, `updated_at` stays the same. A failed attempt changes neither. Saved views are kept; a view
  that was saved before a compaction does not include the compaction.
- A session keeps the newest `COMPACTIONS_KEPT` compactions that are superseded, dropped or dead, and the newest `FAILURES_KEPT`
  failed attempts; recording one deletes the rest. `replace` and `remove` delete all of them, and ids then start again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.domain.origins import Origin
from holdfast.domain.record import ChangedRecords, RecordChange
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
from holdfast.errors import StoreCorrupt


class SavedView(msgspec.Struct, frozen=True, gc=False):
    """The saved state of a view. With this state, the working set of the view can be built without reading the whole log."""

    frontier: int
    """All live entries with this `seq` or a higher one are read to build the working set. Of earlier entries, only `keep` is read."""
    state: bytes
    """Opaque to the store."""
    keep: tuple[int, ...] = ()
    """`seq` of entries before `frontier` that are also read: the anchor, pinned entries, and those that a strategy kept."""
    built_at: int | None = None
    """The session's version when the state was computed; None: the state is computed in the write that saves it. A state that
    was computed before the last retirement, erasure or change of a pin is not saved. Reads do not return this field.
    """


class TurnKey(msgspec.Struct, frozen=True, gc=False):
    """Identifies the request of a turn among all requests of its user."""

    name: str
    """The key that the client chose; empty: it chose none, and the fingerprint is the key."""
    fingerprint: bytes
    """Hash of the request."""
    first: int = 0
    """Index of the turn's first message in the entries of the write."""
    entries: int | None = None
    """Number of these messages; None: all others of the write."""
    is_moved: bool = False
    """True if the turn has the key already, and its messages are written again."""


class KeyedTurn(msgspec.Struct, frozen=True, gc=False):
    """The turn of a key."""

    ref: SessionRef | None
    """Its session; None: the session is gone."""
    identity: str
    """The session's identity."""
    fingerprint: bytes
    first_seq: int
    """`seq` of the first entry that the request wrote."""
    entries: int
    """Number of entries that it wrote."""
    made_at: int
    """When the turn began, in milliseconds since the epoch."""


class Append(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One write to a log."""

    entries: Sequence[NewEntry] = ()
    """The entries to append. An `OldEntry` that was erased stays erased."""
    timestamp: int
    """Milliseconds since the epoch; becomes the session's `updated_at`."""
    expect: int | None = None
    """The version that the session must have, else `StaleSession`; None: any."""
    identity: str | None = None
    """The identity that the session must have, else `SessionNotFound`; None: any session of that name."""
    retire_from: int | None = None
    state_delta: Mapping[str, Any] | None = None
    """Changes of the state, in order, by key with the prefix of its scope. The formats are described in
    `holdfast.domain.state.Change`, the scopes in `holdfast.stores.state`.
    """
    state_expect: Mapping[str, Any] | None = None
    """Values that keys of the session's own state must have before the write, else `StaleState`; None as a value: the key must
    not exist.
    """
    idempotency_key: str | None = None
    fingerprint: bytes = b""
    """Identifies the request. If the idempotency key was used with another fingerprint, the write raises `IdempotencyConflict`."""
    key: TurnKey | None = None
    """The key of the turn that the write opens."""
    calls: Sequence[ModelCall] = ()
    """Model calls to record and to add to the session's usage."""
    views: Mapping[str, SavedView] | None = None
    """View states to save, by view key."""
    compactions: Sequence[NewCompaction] = ()
    """Compactions to record, including failed attempts, in order."""
    ttl: int | None = None
    """Milliseconds of idle time after which a session without its own ttl expires; 0: never. A write to an expired session
    raises `SessionExpired`. None: do not check.
    """
    media: Mapping[bytes, bytes] = {}
    """Contents to which the entries refer, by SHA-256. Contents that the session already has can be left out."""
    records: Sequence[RecordChange] = ()
    """Changes of the session's records, see `holdfast.stores.logic.records`. If one expects another version, nothing is written."""
    origins: Sequence[Origin] = ()
    """Ranges to add to the session's origins, because entries of this write are copies of other entries. The ranges begin after
    those that the session already has, or where the last of them begins, which they then replace."""
    claim: Claim | None = None
    """The claim of the turn that this write begins or renews."""
    release: str | None = None
    """Holder of a claim. The write ends the session's claim if it belongs to this holder."""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The result of a write."""

    session: Session
    """The session after the write; in a replay, the session as it is now."""
    entries: tuple[Entry, ...]
    """The written entries in their present state; in a replay, the entries that the first call wrote."""
    version: int
    """The session's version after the write; in a replay, its version after the first call."""
    start: int = 0
    """The `seq` of the first entry written, or the next `seq` if none was written; in a replay, the value of the first call."""
    replayed: bool = False
    compactions: tuple[StoredCompaction, ...] = ()
    """The compactions that were recorded, each with its status."""
    reopened: bool = False
    """True if the write made a closed session active again."""
    ended: bool = False
    """True if `replace` ended the previous session of the same name."""
    records: ChangedRecords | None = None
    """The result of the changes of records; None: there were none, or it is a replay."""


class WindowRows(msgspec.Struct, frozen=True, gc=False):
    """The data from which a working set is built."""

    session: Session
    view: SavedView | None
    """The view's saved state. None if no state is saved; `entries` is then the whole live path."""
    head: tuple[Entry, ...]
    """The entries in the `keep` of the saved state, in order of `seq`; empty if no state is saved."""
    entries: tuple[Entry, ...]
    """The entries of the live path whose `seq` is at least the `frontier` of the saved state."""
    compaction: StoredCompaction | None = None
    """The view's live compaction. The saved view may be older and not include it."""


class FoundEntries(msgspec.Struct):
    """Live entries of a session that were found by one place in its log."""

    identity: str
    """The session's identity."""
    end: int
    """The `seq` that the session's next entry will have."""
    entries: dict[int, Entry] = {}
    """The entries by `seq`."""
    damage: StoreCorrupt | None = None
    """The error of an entry that is missing because it is damaged."""
