"""The window: the units of a view, and the only changes that a strategy can make to them.

A strategy drops units, clears tool results, cuts messages, and adds compactions for what it dropped. What must stay cannot be dropped:
dropping a unit with the task anchor, a pin or the current user message moves it to the head instead, and the newest unit cannot be dropped
at all. So an invalid prompt cannot be expressed.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.context.agent_view import shorten_relayed
from holdfast.context.cut import MIN_CUT, Count, cut, make_stub
from holdfast.context.units import MessageOverride, SourcedMessage, Unit, list_messages, update_standing
from holdfast.domain.messages import Message
from holdfast.domain.refusals import read_refusals
from holdfast.domain.session import Entry
from holdfast.limits import LEFT_OUT_EXPLAINED

ANCHOR_SHARE = 0.25
"""Share of the room that the task anchor may take."""
Kind = Literal["digest", "summary", "facts"]
"""The kind of a compaction: a digest, made without a model; a model's summary; or the user's statements, verbatim."""
NO_POOL = b"[[],{},{},-1,false]"
"""The empty pool, before anything was evicted; see `holdfast.context.digest.pool`."""
NO_CANDIDATES = b"[[],[]]"
"""The empty list of candidates, before any statement was evicted; see `holdfast.context.standing_facts`."""


class Room(msgspec.Struct, frozen=True, gc=False):
    """The resources of one build: above all the token limit of the conversation, which texts call the room."""

    tokens: int
    """Tokens of the conversation, including compactions, without system prompt and tool schemas."""
    count: Count
    factor: float = 1.0
    """Stored (o200k) counts times this are an upper bound of the model's own counts."""
    loads: bool = False
    """True if the model can load tool results again: then their replacements say how."""
    marker: str = ""
    """The session's marker; see `holdfast.context.escaping`."""
    kept_free: int = 0
    """Part of `tokens` that is kept free for recalled passages once something was evicted."""

    def without_reserve(self) -> Room:
        """Return the room without the tokens that are kept free."""
        if not self.kept_free:
            return self
        return msgspec.structs.replace(self, tokens=max(1, self.tokens - self.kept_free), kept_free=0)


class Compaction(msgspec.Struct, frozen=True, gc=False):
    """The replacement for a range of the log that is no longer sent verbatim. The range stays in the log."""

    first: int
    last: int
    text: str
    tokens: int
    """Tokens of its message, in the model's count."""
    kind: Kind = "digest"
    total: int = 0
    """Tokens of the live path up to and including `last`, as stored."""

    @property
    def message(self) -> Message:
        """The message that is sent: a separate message with the user role, labelled as data."""
        return Message(role="user", content=self.text)

    @property
    def mark(self) -> str:
        """A hash of its text, which identifies it without revealing the text."""
        return hashlib.blake2b(self.text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


class Block:
    """A compaction that may be written later: a cold build makes many steps, and only sends the blocks of the last one.

    Attributes:
        compaction: the compaction that is sent; None if there is nothing to say, or no room for it.
        saved: what the next block can be made from.
        most: tokens that it may take. A window counts these instead of the actual tokens, so that no step depends on the text of an earlier
            one.
        last: `seq` of the last entry that it covers; -1 if there is none.
        total: tokens of the live path up to and including that entry, as stored.
    """

    def __init__(
        self, compaction: Compaction | None, saved: bytes, *, most: int = 0, last: int = -1, total: int = 0
    ) -> None:
        self.compaction, self.saved = compaction, saved
        self.most, self.last, self.total = most, last, total


class DeferredBlock(Block, ABC):
    """A block that is written when its compaction is first needed."""

    def __init__(self, *, most: int, last: int = -1, total: int = 0) -> None:
        self.most, self.last, self.total = most, last, total

    @cached_property
    def compaction(self) -> Compaction | None:  # type: ignore[override]
        return self.write()

    @cached_property
    def saved(self) -> bytes:  # type: ignore[override]
        return self.save()

    @abstractmethod
    def write(self) -> Compaction | None:
        """Write the compaction."""

    @abstractmethod
    def save(self) -> bytes:
        """Encode what the next block can be made from."""


class OutsideRange(msgspec.Struct, frozen=True, gc=False):
    """The part of a log that a strategy does not see; see `holdfast.context.view`."""

    before: int
    """Messages before this `seq`, except those that stay."""
    total: int
    """Tokens of the live path up to there, as stored."""


class LeftOut(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A unit that is in no prompt, although its view would see it. Used by `explain`."""

    first: int
    last: int
    tokens: int
    """Stored tokens."""
    total: int
    """Tokens of the live path up to and including `last`, as stored."""
    reason: str


class Cut(msgspec.Struct, frozen=True, gc=False):
    """A message in its shortened form."""

    tokens: int
    message: Message
    whole: bool = False
    """True if it is short enough to be sent unchanged after all, because its stored count was too high."""
    cleared: bool = False
    """True for a tool result that is replaced by a note."""


class Layout(NamedTuple):
    """The order in which a window is sent: `before`, the first `tasks` units of the rest, `compactions`, `after`, the remaining rest."""

    before: list[Unit]
    compactions: list[Compaction]
    after: list[Unit]
    tasks: int


class Window:
    """The units of a view at one moment. Changes return a new window; only `grow`, which follows the log, modifies it.

    Attributes:
        head: units before the frontier (the first unit of the verbatim rest) that stay: anchor, pins, the current user message.
        units: the verbatim rest, oldest first; the last one is the newest unit.
        left: units dropped since the last digest was made, oldest first.
        summary: a model's summary of the oldest evicted units; `compaction` covers the log after its range.
        digest: the digest of all other evicted units, and the source of the next digest.
        statements: statements of the user from all evicted units, including the summary's range, and the candidates.
        cuts: by `seq`, the shortened form of messages that are cut or cleared.
        anchored: whether the task anchor is more than an ordinary unit.
        outside: the part of the log that the strategy does not see; None if it sees all of it.
        beyond: the last entry after the newest unit if the view does not see that entry; otherwise None.
        standing: places of the system messages in force, which stay until a later one replaces them.
        left_out: the newest units that are in no prompt, oldest first, at most `LEFT_OUT_EXPLAINED`.
        analysed: by place, cached analyses of units; windows derived from each other share it.
        refused: by `seq`, the reasons for which upstreams refused a message of the window.
    """

    def __init__(self, room: Room, *, anchor: int | None = None, anchored: bool = True) -> None:
        self.room = room
        self.anchored = anchored
        self.anchor = anchor
        self.current: int | None = None
        self.head: tuple[Unit, ...] = ()
        self.units: list[Unit] = []
        self.left: tuple[Unit, ...] = ()
        self.summary: Compaction | None = None
        self.digest: Block = Block(None, NO_POOL)
        self.statements: Block = Block(None, NO_CANDIDATES)
        self.cuts: dict[int, Cut] = {}
        self.outside: OutsideRange | None = None
        self.beyond: Entry | None = None
        self.standing: tuple[int, ...] = ()
        self.left_out: tuple[LeftOut, ...] = ()
        self.refused: Mapping[int, Mapping[str, str]] = {}
        self.analysed: dict[int, Any] = {}
        self._sizes: list[int] = []
        self._said: list[Message] | None = None
        self._front: tuple[list[Message], int] = ([], 0)
        """The messages before the verbatim rest, and how many messages of the rest they already include."""
        self._tail = 0
        self._head = 0

    # -- queries -----------------------------------------------------------

    @property
    def tokens(self) -> int:
        """Tokens of the conversation as it would be sent."""
        facts, digest, summary = self.statements.compaction, self.digest.compaction, self.summary
        blocks = (facts.tokens if facts else 0) + (digest.tokens if digest else 0) + (summary.tokens if summary else 0)
        return self._head + self._tail + blocks

    @property
    def allotted(self) -> int:
        """Tokens of the conversation if its blocks took as much as they may. This number decides when the window changes."""
        blocks = self.statements.most + self.digest.most + (self.summary.tokens if self.summary else 0)
        return self._head + self._tail + blocks

    @property
    def facts(self) -> Compaction | None:
        """The compaction with the user's statements."""
        return self.statements.compaction

    @property
    def candidates(self) -> bytes:
        """The statements that the next `facts` can be made from."""
        return self.statements.saved

    @property
    def compaction(self) -> Compaction | None:
        """The compaction of the digest."""
        return self.digest.compaction

    @property
    def pool(self) -> bytes:
        """The pool that the next digest can be made from."""
        return self.digest.saved

    @property
    def has_left(self) -> bool:
        """True if any message is not sent verbatim: only then anything may be recalled."""
        slid = not self.anchored and bool(self.units) and self.units[0].first > 0
        return bool(self.head or self.cuts or self.summary or self.digest.last >= 0) or slid

    @property
    def body(self) -> int:
        """Tokens without the user's statements and the digest, which each step makes anew."""
        return self._head + self._tail + (self.summary.tokens if self.summary else 0)

    @property
    def head_tokens(self) -> int:
        """Tokens of the head."""
        return self._head

    @property
    def tail_tokens(self) -> int:
        """Tokens of the verbatim rest."""
        return self._tail

    def measure_unit(self, unit: Unit) -> int:
        """Return the tokens of `unit` as it would be sent, cuts included."""
        if not self.cuts and unit.plain and not unit.has_media:
            return sum([math.ceil(entry.tokens * self.room.factor) for entry in unit.entries])
        return sum(tokens for _, tokens in self._measure_messages(unit))

    def list_sizes(self) -> Sequence[int]:
        """Return the tokens of each unit of the verbatim rest."""
        return self._sizes

    def is_protected(self, unit: Unit) -> bool:
        """Return True for a unit that `drop` moves to the head instead of leaving it out."""
        if unit.first == self.current:
            return True
        if self.anchored and unit.first == self.anchor:
            return True
        if unit.first in self.standing:
            return True
        return any(entry.pinned for entry in unit.entries)

    # -- changes -----------------------------------------------------------

    def grow(self, unit: Unit) -> None:
        """Add a unit at the end. This follows the log, and is not used by strategies."""
        if unit.asks:
            self.current = unit.first
            self.anchor = unit.first if self.anchor is None else self.anchor
        if unit.instructs:
            self.standing = update_standing(self.standing, self.units[-1] if self.units else None, unit)
        self.beyond = None
        self._note_refusals(unit)
        self.units.append(unit)
        size = self.measure_unit(unit)
        self._sizes.append(size)
        self._tail += size
        if self._said is not None:
            self._said += self._render_unit(unit)

    def pass_over(self, unit: Unit, reason: str) -> None:
        """Note a unit that the view does not see, and the reason; empty if it belongs to another branch."""
        first, self.beyond = unit.entries[0], unit.entries[-1]
        if reason:
            tokens = self.beyond.total - first.total + first.tokens
            passed = LeftOut(first.seq, self.beyond.seq, tokens, self.beyond.total, reason)
            self.left_out = (*self.left_out, passed)[-LEFT_OUT_EXPLAINED:]

    def copy(self) -> Window:
        """Return a copy that can grow independently."""
        return self._with(units=list(self.units), _sizes=list(self._sizes))

    def snapshot(self, newest: int) -> Window:
        """Return what is needed to write a block later: the head and the newest units, with the sizes of all."""
        return self._with(units=self.units[-newest:], left=(), _sizes=[], digest=Block(None, NO_POOL))

    def set_head(self, units: Iterable[Unit]) -> None:
        """Set the units of the head. This restores a saved view, and is not used by strategies."""
        self.head = tuple(units)
        for unit in self.head:
            self._note_refusals(unit)
        self.measure()

    def drop(self, number: int, keeping: Container[int] = ()) -> Window:
        """Return the window without the `number` oldest units of the rest. The newest unit always stays.

        Args:
            number: how many units. The head is checked too: units that no longer belong there are evicted.
            keeping: places of units that move to the head, or stay there, although they are not protected.
        """
        number = max(0, min(number, len(self.units) - 1))
        older = (*self.head, *self.units[:number])
        stays = [self.is_protected(unit) or unit.first in keeping for unit in older]
        head = tuple(unit for unit, stay in zip(older, stays, strict=True) if stay)
        left = (*self.left, *(unit for unit, stay in zip(older, stays, strict=True) if not stay))
        left_seqs = {entry.seq for unit in left for entry in unit.entries}
        sizes = self._sizes[number:]
        return self._with(
            head=head,
            left=left,
            units=self.units[number:],
            cuts={seq: cut for seq, cut in self.cuts.items() if seq not in left_seqs},
            _sizes=sizes,
            _tail=sum(sizes),
            _head=sum(self.measure_unit(unit) for unit in head),
        )

    def cut(self, caps: Mapping[int, int]) -> Window:
        """Return the window with messages cut to the given tokens by `seq`, if possible; see `holdfast.context.cut`."""
        cuts = dict(self.cuts)
        for unit in (*self.head, *self.units):
            if any(entry.seq in caps for entry in unit.entries):
                cuts |= self._cut_unit(unit, caps)
        window = self._with(cuts=cuts)
        window.measure()
        return window

    def drop_through(self, seq: int) -> Window:
        """Return the window without the units of the rest up to an entry."""
        return self.drop(sum(unit.last <= seq for unit in self.units))

    def clear(self, notes: Mapping[int, Message]) -> Window:
        """Return the window with tool results replaced by notes, by `seq`."""
        cleared = {seq: Cut(self.room.count.message(said), said, cleared=True) for seq, said in notes.items()}
        window = self._with(cuts={**self.cuts, **cleared})
        window.measure()
        return window

    def with_summary(self, summary: Compaction) -> Window:
        """Return the window with a model's summary of everything up to its last entry; it replaces an earlier summary and the digest."""
        window = self.with_digest(Block(None, NO_POOL))
        window.summary = summary
        return window

    def without_summary(self) -> Window:
        """Return the window without the summary."""
        return self._with(summary=None)

    def with_digest(self, digest: Block) -> Window:
        """Return the window with a digest of all evicted units, including the earlier digest's range."""
        return self._with(digest=digest, left=())

    def without_digest(self) -> Window:
        """Return the window without a digest. The source of the next digest is kept."""
        return self.with_digest(Block(None, self.digest.saved)) if self.digest.most or self.left else self

    def with_statements(self, statements: Block) -> Window:
        """Return the window with a block of the user's statements and their candidates."""
        return self._with(statements=statements)

    def with_room(self, room: Room) -> Window:
        """Return the window with another room."""
        return self._with(room=room)

    def measure(self) -> None:
        """Recompute all sizes."""
        self._sizes = [self.measure_unit(unit) for unit in self.units]
        self._tail = sum(self._sizes)
        self._head = sum(self.measure_unit(unit) for unit in self.head)

    # -- messages ----------------------------------------------------------

    def list_messages(self) -> list[Message]:
        """Return the conversation: system messages in force, task, compactions, rest; see `_compute_layout`."""
        if self._said is None:
            # Cached while units are only added at the end, so that a build between two steps only copies lists.
            self._said = [message for unit in self.units for message in self._render_unit(unit)]
            before, compactions, after, tasks = self._compute_layout()
            first_part = [message for unit in before for message in self._render_unit(unit)]
            first = [message for unit in self.units[:tasks] for message in self._render_unit(unit)]
            rest = [message for unit in after for message in self._render_unit(unit)]
            self._front = [*first_part, *first, *[one.message for one in compactions], *rest], len(first)
        front, included = self._front
        return [*front, *self._said[included:]]

    def list_seqs(self) -> list[int | None]:
        """Return for each message of `list_messages` the `seq` of its entry; None if it has none."""
        before, compactions, after, tasks = self._compute_layout()
        first_part = [seq for unit in (*before, *self.units[:tasks]) for seq, _ in self._list_unit_messages(unit)]
        rest = [seq for unit in (*after, *self.units[tasks:]) for seq, _ in self._list_unit_messages(unit)]
        return [*first_part, *(None for _ in compactions), *rest]

    def find_current(self) -> int | None:
        """Return the index of the current user message in `list_messages`; None if there is none."""
        if self.current is None:
            return None
        seqs = self.list_seqs()
        return seqs.index(self.current) if self.current in seqs else None

    def list_whole_seqs(self) -> set[int]:
        """Return the `seq` of each entry that is sent verbatim."""
        entries = (entry.seq for unit in (*self.head, *self.units) for entry in unit.entries)
        return {seq for seq in entries if seq not in self.cuts or self.cuts[seq].whole}

    def list_compactions(self) -> Sequence[Compaction]:
        """Return the compactions that are sent, in order."""
        return self._compute_layout().compactions

    def list_sources(self) -> list[Entry | None]:
        """Return for each message of `list_messages` the entry that it represents.

        None for a compaction, a result that was never recorded, and the stub of a task.
        """
        before, compactions, after, tasks = self._compute_layout()
        first_part = [entry for unit in (*before, *self.units[:tasks]) for entry in self._list_unit_sources(unit)]
        rest = [entry for unit in (*after, *self.units[tasks:]) for entry in self._list_unit_sources(unit)]
        return [*first_part, *(None for _ in compactions), *rest]

    def list_cuttable(self, units: Iterable[Unit], floor: int = MIN_CUT) -> list[tuple[int, int]]:
        """Return `(seq, tokens)` of the messages in `units` with more than `floor` tokens, oldest first."""
        measured = [item for unit in units for item in self._measure_messages(unit)]
        return [(seq, tokens) for seq, tokens in measured if seq is not None and tokens > floor]

    def shrink_to_minimum(self) -> Window:
        """Return the smallest window that can be sent: head and newest unit, everything cut as far as possible."""
        least = self.without_summary().drop(len(self.units)).without_digest()
        least = least.with_statements(Block(None, self.candidates))
        return least.cut({seq: MIN_CUT for seq, _ in least.list_cuttable((*least.head, *least.units))})

    # -- helpers -----------------------------------------------------------

    def _list_unit_messages(self, unit: Unit) -> list[SourcedMessage]:
        return list_messages(unit, self.room.marker)

    def _compute_layout(self) -> Layout:
        """Return the order of the messages: system messages in force, task, compactions, rest.

        Other old units that stay, pinned or chosen, come after the compactions: these are older than some of them, and "newer messages take
        precedence". A task that is still verbatim is the first of the rest.
        """
        front = [unit for unit in self.head if unit.instructs]
        rest = [unit for unit in self.head if not unit.instructs]
        task = next((at for at, unit in enumerate(rest) if self.anchored and unit.first == self.anchor), -1)
        before, after = rest[: task + 1], rest[task + 1 :]
        compactions = [one for one in (self.facts, self.summary, self.compaction) if one]
        if compactions and self.anchored and self.units and self.units[0].first == self.anchor:
            return Layout([*front, *before, *after], compactions, [], 1)
        return Layout([*front, *before], compactions, after, 0)

    def _note_refusals(self, unit: Unit) -> None:
        for entry in unit.entries:
            if entry.metadata and (by := read_refusals(entry.metadata)):
                self.refused = {**self.refused, entry.seq: by}

    def _render_unit(self, unit: Unit) -> list[Message]:
        if not self.cuts and len(unit.entries) == 1 and unit.plain:
            return [unit.entries[0].message]
        if not self.cuts:
            return [message for _, message in self._list_unit_messages(unit)]
        cuts = self.cuts
        return [cuts[seq].message if seq in cuts else message for seq, message in self._list_unit_messages(unit)]

    def _list_unit_sources(self, unit: Unit) -> list[Entry | None]:
        entries: dict[int | None, Entry] = {entry.seq: entry for entry in unit.entries}
        return [None if self._is_stub(seq) else entries.get(seq) for seq, _ in self._list_unit_messages(unit)]

    def _is_stub(self, seq: int | None) -> bool:
        return (
            self.anchored and seq is not None and seq == self.anchor and seq in self.cuts and not self.cuts[seq].whole
        )

    def _measure_messages(self, unit: Unit) -> list[tuple[int | None, int]]:
        if unit.overrides is not None:
            return [(one.seq, self._count_override(one)) for one in unit.overrides]
        entries: dict[int | None, Entry] = {entry.seq: entry for entry in unit.entries}
        return [
            (seq, self._count_message(entries.get(seq), message)) for seq, message in self._list_unit_messages(unit)
        ]

    def _count_message(self, entry: Entry | None, message: Message) -> int:
        """Return the stored count if the message is sent unchanged, otherwise a new count."""
        if entry is not None and entry.seq in self.cuts:
            return self.cuts[entry.seq].tokens
        if entry is None or message is not entry.message or message.media:
            return self.room.count.message(message)  # no factor on a stored count bounds the tokens of a picture
        return math.ceil(entry.tokens * self.room.factor)

    def _count_override(self, override: MessageOverride) -> int:
        """Return the tokens of a message that replaces an entry's own; otherwise like `_count_message`."""
        if override.seq in self.cuts:
            return self.cuts[override.seq].tokens
        return (
            self.room.count.message(override.message)
            if override.message.media
            else math.ceil(override.tokens * self.room.factor)
        )

    def _cut_unit(self, unit: Unit, caps: Mapping[int, int]) -> dict[int, Cut]:
        """Return the cut form of the messages of `unit` that are in `caps` and get shorter by being cut."""
        cuts = {}
        sizes = self._measure_messages(unit)
        relayed = {one.seq: one for one in unit.overrides or () if one.heading}
        count, loads, marker = self.room.count, self.room.loads, self.room.marker
        for (seq, message), (_, tokens) in zip(self._list_unit_messages(unit), sizes, strict=True):
            if seq is None or seq not in caps:
                continue
            if seq in relayed:
                shorter = shorten_relayed(relayed[seq], caps[seq], count=count, loads=loads, marker=marker)
            elif self.anchored and seq == self.anchor:
                shorter = make_stub(message, caps[seq], seq=seq, count=count, marker=marker)
            else:
                shorter = cut(message, caps[seq], seq=seq, count=count, loads=loads, marker=marker)
            made = Cut(count.message(shorter), shorter, whole=shorter is message)
            if made.tokens < tokens:
                cuts[seq] = made
        return cuts

    def _with(self, **changes: Any) -> Window:
        window = Window(self.room, anchor=self.anchor, anchored=self.anchored)
        window.__dict__.update(self.__dict__, _said=None, **changes)
        return window
