"""The window: the units a strategy looks at, and the only moves it has.

A strategy drops units, clears tool results, cuts messages, and lays a compaction over what it dropped. What must not go
does not: dropping a unit that holds the task anchor, a pin or the current user message moves it to the head instead, and
the newest unit cannot be dropped at all. So an illegal prompt cannot be expressed.
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
"""Part of the room that the task anchor may take."""
Kind = Literal["digest", "summary", "facts"]
"""What a compaction is: a digest, made without a model; a model's summary; or the user's statements, verbatim."""
NO_POOL = b"[[],{},{},-1,false]"
"""Nothing has left yet that a digest could be made from; see `holdfast.context.digest.pool`."""
NO_CANDIDATES = b"[[],[]]"
"""No statement has left yet; see `holdfast.context.standing_facts`."""


class Room(msgspec.Struct, frozen=True, gc=False):
    """What one build may use."""

    tokens: int
    """For the conversation: compaction included, system prompt and tool schemas not."""
    count: Count
    factor: float = 1.0
    """Stored (o200k) counts times this bound the model's own counts."""
    loads: bool = False
    """Whether the model can load results of tools back: then what stands for them says how."""
    marker: str = ""
    """The session's; see `holdfast.context.escaping`."""
    kept_free: int = 0
    """How much of `tokens` is kept free for what is recalled, as soon as something has left."""

    def without_reserve(self) -> Room:
        """Return the room without what is kept free."""
        if not self.kept_free:
            return self
        return msgspec.structs.replace(self, tokens=max(1, self.tokens - self.kept_free), kept_free=0)


class Compaction(msgspec.Struct, frozen=True, gc=False):
    """What stands for a range of the log that is no longer sent verbatim. The range stays in the log."""

    first: int
    last: int
    text: str
    tokens: int
    """Of the message it becomes, in the model's count."""
    kind: Kind = "digest"
    total: int = 0
    """Tokens of the live path up to and with `last`, as stored."""

    @property
    def message(self) -> Message:
        """The compaction as it is sent: a user-role message of its own, labelled as data."""
        return Message(role="user", content=self.text)

    @property
    def mark(self) -> str:
        """Names it among others, by what it says, without telling it."""
        return hashlib.blake2b(self.text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


class Block:
    """A compaction that may be written later: a cold build goes through many steps, and sends the blocks of the last one only.

    Attributes:
        compaction: what is sent; None if there is nothing to say, or no room for it.
        saved: what the next block can be made from.
        most: tokens that it may take. A window counts these, so that no step depends on what an earlier one wrote.
        last: `seq` of the last entry that it stands for; -1: there is none.
        total: tokens of the live path up to and with that entry, as stored.
    """

    def __init__(
        self, compaction: Compaction | None, saved: bytes, *, most: int = 0, last: int = -1, total: int = 0
    ) -> None:
        self.compaction, self.saved = compaction, saved
        self.most, self.last, self.total = most, last, total


class DeferredBlock(Block, ABC):
    """A block that is written when its compaction is first asked for."""

    def __init__(self, *, most: int, last: int = -1, total: int = 0) -> None:
        self.most, self.last, self.total = most, last, total

    @cached_property
    def compaction(self) -> Compaction | None:  # type: ignore[override]
        """See `Block`."""
        return self.write()

    @cached_property
    def saved(self) -> bytes:  # type: ignore[override]
        """See `Block`."""
        return self.save()

    @abstractmethod
    def write(self) -> Compaction | None:
        """Write it."""

    @abstractmethod
    def save(self) -> bytes:
        """Encode what the next block can be made from."""


class OutsideRange(msgspec.Struct, frozen=True, gc=False):
    """What of a log a strategy does not get to see; see `holdfast.context.view`."""

    before: int
    """Messages before this `seq`, but for what stays."""
    total: int
    """Tokens of the live path up to there, as stored."""


class LeftOut(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A unit that no prompt has, though its view would see it: for `explain`."""

    first: int
    last: int
    tokens: int
    """As stored."""
    total: int
    """Tokens of the live path up to and with `last`, as stored."""
    reason: str


class Cut(msgspec.Struct, frozen=True, gc=False):
    """A message as it is sent when it is not sent as it was said."""

    tokens: int
    message: Message
    whole: bool = False
    """True when it was short enough after all: its stored count had said more than it takes."""
    cleared: bool = False
    """True for a tool result of which nothing but a note is sent."""


class Layout(NamedTuple):
    """What is sent of a window, in order: `before`, the first `tasks` units of the rest, `list_compactions`, `behind`, the rest."""

    before: list[Unit]
    laid: list[Compaction]
    behind: list[Unit]
    tasks: int


class Window:
    """The units of one view at one moment. Moves return a new window; only `grow`, the log's own move, changes it.

    Attributes:
        head: units before the frontier that stay all the same: anchor, pins, the current user message.
        units: the verbatim rest, oldest first; the last one is the newest unit.
        left: what was dropped since the last compaction was laid, oldest first.
        summary: what a model wrote of the oldest that left; the log behind its range is `compaction`'s.
        digest: the digest of all that left before that, and what the next one can be made from.
        statements: statements of the user from all that left, the summary's range included, and their candidates.
        cuts: by `seq`, the messages that are sent cut or cleared, as they are sent.
        anchored: whether the task anchor is more than an ordinary unit.
        outside: what of the log is not to be seen; None: all of it is.
        beyond: the last entry behind the newest unit, where what stands there is not seen; None: nothing does.
        standing: places of the system messages of the log that are in force: they stay until a later one comes.
        left_out: the newest units that no prompt has, oldest first, at most `LEFT_OUT_EXPLAINED`.
        analysed: by place, what is known of units beyond their sizes; windows that follow each other share it.
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
        """What is sent before the verbatim rest, and how many messages of that are in it already."""
        self._tail = 0
        self._head = 0

    # -- what a strategy asks ------------------------------------------------

    @property
    def tokens(self) -> int:
        """Tokens of the conversation as it would be sent."""
        facts, digest, summary = self.statements.compaction, self.digest.compaction, self.summary
        laid = (facts.tokens if facts else 0) + (digest.tokens if digest else 0) + (summary.tokens if summary else 0)
        return self._head + self._tail + laid

    @property
    def allotted(self) -> int:
        """Tokens of the conversation with as many as its blocks may take: what decides when the window changes."""
        laid = self.statements.most + self.digest.most + (self.summary.tokens if self.summary else 0)
        return self._head + self._tail + laid

    @property
    def facts(self) -> Compaction | None:
        """The user's statements as they are sent."""
        return self.statements.compaction

    @property
    def candidates(self) -> bytes:
        """What the next `facts` can be made from."""
        return self.statements.saved

    @property
    def compaction(self) -> Compaction | None:
        """The digest as it is sent."""
        return self.digest.compaction

    @property
    def pool(self) -> bytes:
        """What the next digest can be made from."""
        return self.digest.saved

    @property
    def has_left(self) -> bool:
        """Return True if something is not sent as it was said: only then may it be recalled."""
        slid = not self.anchored and bool(self.units) and self.units[0].first > 0
        return bool(self.head or self.cuts or self.summary or self.digest.last >= 0) or slid

    @property
    def body(self) -> int:
        """Tokens without the user's statements and the digest, which a step makes anew."""
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
        """Tokens of `unit` as it would be sent, cuts included."""
        if not self.cuts and unit.plain and not unit.has_media:
            return sum([math.ceil(entry.tokens * self.room.factor) for entry in unit.entries])
        return sum(tokens for _, tokens in self._measure_messages(unit))

    def list_sizes(self) -> Sequence[int]:
        """Tokens of each unit of the verbatim rest."""
        return self._sizes

    def is_protected(self, unit: Unit) -> bool:
        """True for what `drop` moves to the head instead of leaving out."""
        if unit.first == self.current:
            return True
        if self.anchored and unit.first == self.anchor:
            return True
        if unit.first in self.standing:
            return True
        return any(entry.pinned for entry in unit.entries)

    # -- the moves ---------------------------------------------------------

    def grow(self, unit: Unit) -> None:
        """Take a unit in at the end: the log's move, not a strategy's."""
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
        """Note a unit that is not seen, and why no prompt has it; empty: it is another branch's."""
        first, self.beyond = unit.entries[0], unit.entries[-1]
        if reason:
            tokens = self.beyond.total - first.total + first.tokens
            passed = LeftOut(first.seq, self.beyond.seq, tokens, self.beyond.total, reason)
            self.left_out = (*self.left_out, passed)[-LEFT_OUT_EXPLAINED:]

    def copy(self) -> Window:
        """One that can grow by itself."""
        return self._with(units=list(self.units), _sizes=list(self._sizes))

    def snapshot(self, newest: int) -> Window:
        """Return what a block is written from later: the head and so many of the newest units, with the sizes of all."""
        return self._with(units=self.units[-newest:], left=(), _sizes=[], digest=Block(None, NO_POOL))

    def set_head(self, units: Iterable[Unit]) -> None:
        """Take units in as the head: carrying a saved view on, not a strategy's move either."""
        self.head = tuple(units)
        for unit in self.head:
            self._note_refusals(unit)
        self.measure()

    def drop(self, number: int, keeping: Container[int] = ()) -> Window:
        """Without the `number` oldest units of the rest; the newest unit stays whatever the number.

        Args:
            number: how many; the head is gone over as well: what does not belong there any more leaves.
            keeping: places of units that go to the head, or stay there, though they are not protected.
        """
        number = max(0, min(number, len(self.units) - 1))
        older = (*self.head, *self.units[:number])
        stays = [self.is_protected(unit) or unit.first in keeping for unit in older]
        head = tuple(unit for unit, stay in zip(older, stays, strict=True) if stay)
        left = (*self.left, *(unit for unit, stay in zip(older, stays, strict=True) if not stay))
        gone = {entry.seq for unit in left for entry in unit.entries}
        sizes = self._sizes[number:]
        return self._with(
            head=head,
            left=left,
            units=self.units[number:],
            cuts={seq: cut for seq, cut in self.cuts.items() if seq not in gone},
            _sizes=sizes,
            _tail=sum(sizes),
            _head=sum(self.measure_unit(unit) for unit in head),
        )

    def cut(self, caps: Mapping[int, int]) -> Window:
        """With messages in at most so many tokens where that can be, by `seq`; see `holdfast.context.cut`."""
        cuts = dict(self.cuts)
        for unit in (*self.head, *self.units):
            if any(entry.seq in caps for entry in unit.entries):
                cuts |= self._cut_unit(unit, caps)
        window = self._with(cuts=cuts)
        window.measure()
        return window

    def drop_through(self, seq: int) -> Window:
        """Without the units of the rest up to an entry."""
        return self.drop(sum(unit.last <= seq for unit in self.units))

    def clear(self, notes: Mapping[int, Message]) -> Window:
        """With tool results replaced by notes, by `seq`."""
        cleared = {seq: Cut(self.room.count.message(said), said, cleared=True) for seq, said in notes.items()}
        window = self._with(cuts={**self.cuts, **cleared})
        window.measure()
        return window

    def with_summary(self, summary: Compaction) -> Window:
        """With a model's summary in place of all that left, up to its last entry, an earlier summary and the digest included."""
        window = self.with_digest(Block(None, NO_POOL))
        window.summary = summary
        return window

    def without_summary(self) -> Window:
        """Without the summary."""
        return self._with(summary=None)

    def with_digest(self, digest: Block) -> Window:
        """With a digest for all that left, the earlier digest's range included."""
        return self._with(digest=digest, left=())

    def without_digest(self) -> Window:
        """Without a digest; what the next one can be made from stays."""
        return self.with_digest(Block(None, self.digest.saved)) if self.digest.most or self.left else self

    def with_statements(self, statements: Block) -> Window:
        """With these statements of the user, and what the next ones can be made from."""
        return self._with(statements=statements)

    def with_room(self, room: Room) -> Window:
        """With another room."""
        return self._with(room=room)

    def measure(self) -> None:
        """Work all sizes out anew."""
        self._sizes = [self.measure_unit(unit) for unit in self.units]
        self._tail = sum(self._sizes)
        self._head = sum(self.measure_unit(unit) for unit in self.head)

    # -- what is sent ------------------------------------------------------

    def messages(self) -> list[Message]:
        """The conversation: system messages in force, task, compactions, rest; see `_compute_layout`."""
        if self._said is None:
            # Kept while units only come in at the end, so that a build between two steps copies and does no more.
            self._said = [message for unit in self.units for message in self._render_unit(unit)]
            before, laid, behind, tasks = self._compute_layout()
            told = [message for unit in before for message in self._render_unit(unit)]
            first = [message for unit in self.units[:tasks] for message in self._render_unit(unit)]
            rest = [message for unit in behind for message in self._render_unit(unit)]
            self._front = [*told, *first, *[one.message for one in laid], *rest], len(first)
        front, told_already = self._front
        return [*front, *self._said[told_already:]]

    def list_seqs(self) -> list[int | None]:
        """For each of `messages`, in their order, the `seq` of its entry; None where it has none."""
        before, laid, behind, tasks = self._compute_layout()
        told = [seq for unit in (*before, *self.units[:tasks]) for seq, _ in self._list_unit_messages(unit)]
        rest = [seq for unit in (*behind, *self.units[tasks:]) for seq, _ in self._list_unit_messages(unit)]
        return [*told, *(None for _ in laid), *rest]

    def find_current(self) -> int | None:
        """Which of `messages` is the current user message; None: there is none."""
        if self.current is None:
            return None
        seqs = self.list_seqs()
        return seqs.index(self.current) if self.current in seqs else None

    def list_whole_seqs(self) -> set[int]:
        """`seq` of the entries that are sent as they were said."""
        entries = (entry.seq for unit in (*self.head, *self.units) for entry in unit.entries)
        return {seq for seq in entries if seq not in self.cuts or self.cuts[seq].whole}

    def list_compactions(self) -> Sequence[Compaction]:
        """Return the compactions that are sent, in their order."""
        return self._compute_layout().laid

    def list_sources(self) -> list[Entry | None]:
        """For each of `messages`, in their order, the entry that it stands for.

        None where it stands for none: a compaction, a result that was never recorded, the stub of a task.
        """
        before, laid, behind, tasks = self._compute_layout()
        told = [entry for unit in (*before, *self.units[:tasks]) for entry in self._list_unit_sources(unit)]
        rest = [entry for unit in (*behind, *self.units[tasks:]) for entry in self._list_unit_sources(unit)]
        return [*told, *(None for _ in laid), *rest]

    def list_cuttable(self, units: Iterable[Unit], floor: int = MIN_CUT) -> list[tuple[int, int]]:
        """`(seq, tokens)` of the messages in `units` that take more than `floor` tokens, oldest first."""
        measured = [item for unit in units for item in self._measure_messages(unit)]
        return [(seq, tokens) for seq, tokens in measured if seq is not None and tokens > floor]

    def shrink_to_minimum(self) -> Window:
        """The least that can be sent: head and newest unit, everything cut as far as it may be."""
        least = self.without_summary().drop(len(self.units)).without_digest()
        least = least.with_statements(Block(None, self.candidates))
        return least.cut({seq: MIN_CUT for seq, _ in least.list_cuttable((*least.head, *least.units))})

    # -- inside ------------------------------------------------------------

    def _list_unit_messages(self, unit: Unit) -> list[SourcedMessage]:
        return list_messages(unit, self.room.marker)

    def _compute_layout(self) -> Layout:
        """Return the order in which it is sent: system messages in force, task, compactions, rest.

        Whatever else stays of what is older, pinned or chosen, comes after the compactions: what they tell is older than some of it, and
        "newer messages take precedence". A task that is still verbatim is the first of the rest.
        """
        front = [unit for unit in self.head if unit.instructs]
        rest = [unit for unit in self.head if not unit.instructs]
        task = next((at for at, unit in enumerate(rest) if self.anchored and unit.first == self.anchor), -1)
        before, behind = rest[: task + 1], rest[task + 1 :]
        laid = [one for one in (self.facts, self.summary, self.compaction) if one]
        if laid and self.anchored and self.units and self.units[0].first == self.anchor:
            return Layout([*front, *before, *behind], laid, [], 1)
        return Layout([*front, *before], laid, behind, 0)

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
        """The stored count where the message leaves as it came, a new one where it does not."""
        if entry is not None and entry.seq in self.cuts:
            return self.cuts[entry.seq].tokens
        if entry is None or message is not entry.message or message.media:
            return self.room.count.message(message)  # what a picture costs, no factor on a stored count bounds
        return math.ceil(entry.tokens * self.room.factor)

    def _count_override(self, told: MessageOverride) -> int:
        """Like `_count_message`, of what a view is told in place of an entry's message."""
        if told.seq in self.cuts:
            return self.cuts[told.seq].tokens
        return (
            self.room.count.message(told.message) if told.message.media else math.ceil(told.tokens * self.room.factor)
        )

    def _cut_unit(self, unit: Unit, caps: Mapping[int, int]) -> dict[int, Cut]:
        """The messages of `unit` that `caps` names and that get shorter by being cut, as they are sent."""
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
