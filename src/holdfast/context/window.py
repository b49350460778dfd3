"""The window: the units from which a prompt is made, and the only changes that a strategy can make to them.

A unit is one message, or a reply with tool calls and all their results. A window has two lists of units: the tail has the newest units of
the log, without gaps, and the head has older units that must stay. The frontier is the `seq` of the first entry of the tail.

A strategy drops units, clears tool results, cuts messages, and adds compactions that replace the dropped units. `Window.drop` moves a unit
to the head instead of dropping it if the unit contains the task anchor (the user's first message), a pinned message, the current user
message or a system message in force. The newest unit cannot be dropped at all. A strategy can therefore never produce an invalid prompt.

Windows only contain live entries of the log: entries that no edit or rewind has removed.
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
from holdfast.context.cut import MIN_CUT, cut, make_stub
from holdfast.context.units import MessageOverride, SourcedMessage, Unit, list_messages, update_standing
from holdfast.domain.counting import TokenCounter
from holdfast.domain.messages import Message
from holdfast.domain.refusals import Refusal, read_refusals
from holdfast.domain.session import Entry
from holdfast.limits import LEFT_OUT_EXPLAINED

ANCHOR_SHARE = 0.25
"""Share of the window's token limit that the task anchor may take."""
Kind = Literal["digest", "summary", "facts"]
"""The kind of a compaction: `digest` is made without a model, `summary` is written by a model, `facts` quotes statements of the user."""
NO_POOL = b"[[],{},{},-1,false]"
"""The encoded pool of facts before anything was evicted; see `holdfast.context.digest.pool`."""
NO_CANDIDATES = b"[[],[]]"
"""The encoded list of the user's statements before any was evicted; see `holdfast.context.standing_facts`."""


class Room(msgspec.Struct, frozen=True, gc=False):
    """The token limit of a window, the token counter, and other inputs that one build needs to shrink a window."""

    tokens: int
    """Maximum tokens of the conversation. Compactions count, the system prompt and tool schemas do not."""
    count: TokenCounter
    factor: float = 1.0
    """Multiply a stored (o200k) count by this factor to get an upper bound of the model's own count."""
    loads: bool = False
    """True if the model can load tool results again. The notes that replace results then say how."""
    marker: str = ""
    """The session's marker; see `holdfast.context.escaping`."""
    kept_free: int = 0
    """Part of `tokens` that is reserved for recalled passages as soon as a message was evicted."""
    reads_items: bool = False
    """True if the model's provider reads its own compaction items. The newest one then stays when its message is cut."""

    def without_reserve(self) -> Room:
        """Return a copy whose `tokens` no longer include the tokens reserved for recalled passages."""
        if not self.kept_free:
            return self
        return msgspec.structs.replace(self, tokens=max(1, self.tokens - self.kept_free), kept_free=0)


class Compaction(msgspec.Struct, frozen=True, gc=False):
    """A text that replaces a range of the log in the prompt: a digest, a summary or the user's statements. The log keeps the range."""

    first: int
    last: int
    text: str
    tokens: int
    """Tokens of the compaction's message, as the model counts them."""
    kind: Kind = "digest"
    total: int = 0
    """Stored token count of all live entries up to and including `last`."""

    @property
    def message(self) -> Message:
        """The message with the user role that carries the compaction. Its text labels itself as data."""
        return Message(role="user", content=self.text)

    @property
    def mark(self) -> str:
        """Hash of the text. It identifies the compaction without revealing the text."""
        return hashlib.blake2b(self.text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


class Block:
    """A digest or the user's statements, with the data from which the next such block is made.

    `DeferredBlock` writes its text later: rebuilding a view repeats many evictions, but only the text after the last eviction is sent.

    Attributes:
        compaction: the compaction that is sent; None if it would be empty or does not fit.
        saved: the encoded data from which the next block is made.
        most: maximum tokens of the compaction. A window counts this number instead of the actual tokens, so that evictions do not depend on
            the text of earlier blocks.
        last: `seq` of the last entry that the block covers; -1 if there is none.
        total: stored token count of all live entries up to and including `last`.
    """

    def __init__(
        self, compaction: Compaction | None, saved: bytes, *, most: int = 0, last: int = -1, total: int = 0
    ) -> None:
        self.compaction, self.saved = compaction, saved
        self.most, self.last, self.total = most, last, total


class DeferredBlock(Block, ABC):
    """A block whose compaction is written at the first access to it."""

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
        """Return the compaction; None if it would be empty or does not fit."""

    @abstractmethod
    def save(self) -> bytes:
        """Return the encoded data from which the next block is made."""


class OutsideRange(msgspec.Struct, frozen=True, gc=False):
    """The older part of a log that a `BufferedView` does not show to its strategy."""

    before: int
    """The part consists of the entries before this `seq`, without those that must stay."""
    total: int
    """Stored token count of all live entries before the `seq` in `before`."""


class LeftOut(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A unit that is left out of every prompt although it belongs to a visible branch. `explain` shows it with its reason."""

    first: int
    last: int
    tokens: int
    """Stored token count of the unit."""
    total: int
    """Stored token count of all live entries up to and including `last`."""
    reason: Literal["empty", "unreadable"]


class Cut(msgspec.Struct, frozen=True, gc=False):
    """The shortened form of a message."""

    tokens: int
    message: Message
    whole: bool = False
    """True if `message` is the unchanged original: an exact count showed that it fits, while its stored count was too high."""
    cleared: bool = False
    """True if `message` is a note that replaces a tool result."""


class Layout(NamedTuple):
    """The order in which a window is sent: `before`, the first `tasks` units of the tail, `compactions`, `after`, the rest of the tail."""

    before: list[Unit]
    compactions: list[Compaction]
    after: list[Unit]
    tasks: int


class Window:
    """The units and compactions from which a prompt is made.

    A strategy never modifies a window: the methods that it calls return a new one. Views modify a window in place, for example with `grow`
    when the log grows.

    Attributes:
        head: older units that must stay: the task anchor, pinned units, system messages in force, the current user message, and the
            newest compaction item of a provider.
        units: the tail, oldest first. The last item is the newest unit of the log that the agent sees.
        left: units that were dropped since the last digest was made, oldest first.
        summary: a model's summary of the oldest evicted units; None if there is none.
        digest: the block for the evicted units that `summary` does not cover.
        statements: the block with statements of the user from all evicted units, including those that `summary` covers.
        cuts: by `seq`, the shortened form of messages that are cut or cleared.
        anchored: True if the task anchor must stay; False if it is an ordinary unit.
        outside: the older part of the log that the strategy does not see; None if it sees the whole log.
        beyond: the last entry of the log if the agent does not see it; otherwise None.
        compacting: `seq` of the first entry of the newest unit with a compaction item of a provider; None if there is none.
        standing: for each system message in force, the `seq` of its unit's first entry. A system message is in force until a later one
            replaces it.
        left_out: the newest units that no prompt contains, oldest first, at most `LEFT_OUT_EXPLAINED`.
        analysed: cached analyses of units by the `seq` of their first entry. Windows derived from each other share it.
        refused: by `seq` of a refused message, the refusal of each upstream, by the upstream's name.
    """

    def __init__(self, room: Room, *, anchor: int | None = None, anchored: bool = True) -> None:
        self.room = room
        self.anchored = anchored
        self.anchor = anchor
        self.current: int | None = None
        self.compacting: int | None = None
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
        self.refused: Mapping[int, Mapping[str, Refusal]] = {}
        self.analysed: dict[int, Any] = {}
        self._sizes: list[int] = []
        self._said: list[Message] | None = None
        self._front: tuple[list[Message], int] = ([], 0)
        """The messages that are sent before the tail, and how many messages of the tail are already among them."""
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
        """Tokens of the conversation if its digest and statements had their maximum size. A strategy compares this with its limits."""
        blocks = self.statements.most + self.digest.most + (self.summary.tokens if self.summary else 0)
        return self._head + self._tail + blocks

    @property
    def facts(self) -> Compaction | None:
        """The compaction with the user's statements; None if there is none."""
        return self.statements.compaction

    @property
    def candidates(self) -> bytes:
        """The encoded statements from which the next `facts` is made."""
        return self.statements.saved

    @property
    def compaction(self) -> Compaction | None:
        """The digest as a compaction; None if there is none."""
        return self.digest.compaction

    @property
    def pool(self) -> bytes:
        """The encoded pool of facts from which the next digest is made."""
        return self.digest.saved

    @property
    def has_left(self) -> bool:
        """True if at least one message is not sent verbatim. If all are, no passages of the session need to be recalled."""
        slid = not self.anchored and bool(self.units) and self.units[0].first > 0
        return bool(self.head or self.cuts or self.summary or self.digest.last >= 0) or slid

    @property
    def body(self) -> int:
        """Tokens of head, tail and summary. The user's statements and the digest are not counted, because each eviction rewrites them."""
        return self._head + self._tail + (self.summary.tokens if self.summary else 0)

    @property
    def head_tokens(self) -> int:
        """Tokens of the head."""
        return self._head

    @property
    def tail_tokens(self) -> int:
        """Tokens of the tail."""
        return self._tail

    def measure_unit(self, unit: Unit) -> int:
        """Return the tokens of `unit` as it would be sent, cuts included."""
        if not self.cuts and unit.plain and not unit.has_media:
            return sum([math.ceil(entry.tokens * self.room.factor) for entry in unit.entries])
        return sum(tokens for _, tokens in self._measure_messages(unit))

    def list_sizes(self) -> Sequence[int]:
        """Return the tokens of each unit of the tail."""
        return self._sizes

    def is_protected(self, unit: Unit) -> bool:
        """Return True if the unit must stay: `drop` moves it to the head instead of dropping it."""
        if unit.first == self.current:
            return True
        if self.anchored and unit.first == self.anchor:
            return True
        if unit.first in self.standing or unit.first == self.compacting:
            return True
        return any(entry.pinned for entry in unit.entries)

    # -- changes -----------------------------------------------------------

    def grow(self, unit: Unit) -> None:
        """Add a unit at the end of the tail, in place. Views call this when the log grows; strategies do not."""
        if unit.asks:
            self.current = unit.first
            self.anchor = unit.first if self.anchor is None else self.anchor
        if unit.compacts:
            self.compacting = unit.first
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

    def pass_over(self, unit: Unit, reason: Literal["empty", "unreadable"] | None) -> None:
        """Record that a new unit of the log is left out of the window.

        Args:
            unit: the unit.
            reason: why no prompt contains it; None if it belongs to another branch, which needs no explanation.
        """
        first, self.beyond = unit.entries[0], unit.entries[-1]
        if unit.compacts:
            self.compacting = unit.first
        if reason:
            tokens = self.beyond.total - first.total + first.tokens
            passed = LeftOut(first.seq, self.beyond.seq, tokens, self.beyond.total, reason)
            self.left_out = (*self.left_out, passed)[-LEFT_OUT_EXPLAINED:]

    def copy(self) -> Window:
        """Return a copy that can grow without changing this window."""
        return self._with(units=list(self.units), _sizes=list(self._sizes))

    def snapshot(self, newest: int) -> Window:
        """Return a reduced copy from which a block can be written later: the head, the `newest` last units, and the total token counts."""
        return self._with(units=self.units[-newest:], left=(), _sizes=[], digest=Block(None, NO_POOL))

    def set_head(self, units: Iterable[Unit]) -> None:
        """Replace the head, in place. Views call this to restore a saved state; strategies do not."""
        self.head = tuple(units)
        for unit in self.head:
            self._note_refusals(unit)
        self.measure()

    def drop(self, number: int, keeping: Container[int] = ()) -> Window:
        """Return the window without the `number` oldest units of the tail.

        Units that must stay move to the head. Units of the head that need not stay any more are dropped too. The newest unit always stays.

        Args:
            number: number of units to remove from the tail.
            keeping: further units that move to the head or stay in it, each named by the `seq` of its first entry.
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
        """Return the window with some messages cut; see `holdfast.context.cut`.

        Args:
            caps: maximum tokens of each message, by its `seq`. A message that cannot be cut so far keeps more tokens.
        """
        cuts = dict(self.cuts)
        for unit in (*self.head, *self.units):
            if any(entry.seq in caps for entry in unit.entries):
                cuts |= self._cut_unit(unit, caps)
        window = self._with(cuts=cuts)
        window.measure()
        return window

    def drop_through(self, seq: int) -> Window:
        """Return the window without the units of the tail that end at or before entry `seq`."""
        return self.drop(sum(unit.last <= seq for unit in self.units))

    def clear(self, notes: Mapping[int, Message]) -> Window:
        """Return the window with tool results replaced by notes.

        Args:
            notes: the note that replaces each result, by the result's `seq`.
        """
        cleared = {seq: Cut(self.room.count.message(said), said, cleared=True) for seq, said in notes.items()}
        window = self._with(cuts={**self.cuts, **cleared})
        window.measure()
        return window

    def with_summary(self, summary: Compaction) -> Window:
        """Return the window with a model's summary, which replaces the earlier summary and the digest."""
        window = self.with_digest(Block(None, NO_POOL))
        window.summary = summary
        return window

    def without_summary(self) -> Window:
        """Return the window without the summary."""
        return self._with(summary=None)

    def with_digest(self, digest: Block) -> Window:
        """Return the window with a new digest, which must also cover the dropped units in `left`. The new window's `left` is empty."""
        return self._with(digest=digest, left=())

    def without_digest(self) -> Window:
        """Return the window without a digest and with an empty `left`. The data for the next digest is kept."""
        return self.with_digest(Block(None, self.digest.saved)) if self.digest.most or self.left else self

    def with_statements(self, statements: Block) -> Window:
        """Return the window with another block of the user's statements."""
        return self._with(statements=statements)

    def with_room(self, room: Room) -> Window:
        """Return the window with another token limit and counter."""
        return self._with(room=room)

    def measure(self) -> None:
        """Recompute the token counts of head and tail."""
        self._sizes = [self.measure_unit(unit) for unit in self.units]
        self._tail = sum(self._sizes)
        self._head = sum(self.measure_unit(unit) for unit in self.head)

    # -- messages ----------------------------------------------------------

    def list_messages(self) -> list[Message]:
        """Return the conversation in the order in which it is sent: system messages in force, task, compactions, other units."""
        if self._said is None:
            # Cached while units are only added at the end, so that a build between two evictions only copies lists.
            self._said = [message for unit in self.units for message in self._render_unit(unit)]
            before, compactions, after, tasks = self.compute_layout()
            first_part = [message for unit in before for message in self._render_unit(unit)]
            first = [message for unit in self.units[:tasks] for message in self._render_unit(unit)]
            rest = [message for unit in after for message in self._render_unit(unit)]
            self._front = [*first_part, *first, *[one.message for one in compactions], *rest], len(first)
        front, included = self._front
        return [*front, *self._said[included:]]

    def list_seqs(self) -> list[int | None]:
        """Return the `seq` of the entry of each message of `list_messages`; None for a message without an entry."""
        before, compactions, after, tasks = self.compute_layout()
        first_part = [seq for unit in (*before, *self.units[:tasks]) for seq, _ in self._list_unit_messages(unit)]
        rest = [seq for unit in (*after, *self.units[tasks:]) for seq, _ in self._list_unit_messages(unit)]
        return [*first_part, *(None for _ in compactions), *rest]

    def find_current(self) -> int | None:
        """Return the index of the current user message in `list_messages`; None if it is not sent."""
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
        return self.compute_layout().compactions

    def list_cuttable(self, units: Iterable[Unit], floor: int = MIN_CUT) -> list[tuple[int, int]]:
        """Return `(seq, tokens)` of the messages in `units` with more than `floor` tokens, oldest first."""
        measured = [item for unit in units for item in self._measure_messages(unit)]
        return [(seq, tokens) for seq, tokens in measured if seq is not None and tokens > floor]

    def shrink_to_minimum(self) -> Window:
        """Return the smallest window that can be sent: the head and the newest unit, with all messages cut and without compactions."""
        least = self.without_summary().drop(len(self.units)).without_digest()
        least = least.with_statements(Block(None, self.candidates))
        return least.cut({seq: MIN_CUT for seq, _ in least.list_cuttable((*least.head, *least.units))})

    # -- helpers -----------------------------------------------------------

    def _list_unit_messages(self, unit: Unit) -> list[SourcedMessage]:
        return list_messages(unit, self.room.marker)

    def compute_layout(self) -> Layout:
        """Return the order in which the window is sent: system messages in force, task, compactions, all other units.

        Other units of the head, such as pinned messages, come after the compactions. A compaction may cover older messages than these, and
        its text says that newer messages take precedence. The task may still be the first unit of the tail; the compactions follow it then.
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

    def _measure_messages(self, unit: Unit) -> list[tuple[int | None, int]]:
        if unit.overrides is not None:
            return [(one.seq, self._count_override(one)) for one in unit.overrides]
        entries: dict[int | None, Entry] = {entry.seq: entry for entry in unit.entries}
        return [
            (seq, self._count_message(entries.get(seq), message)) for seq, message in self._list_unit_messages(unit)
        ]

    def _count_message(self, entry: Entry | None, message: Message) -> int:
        """Return the tokens of a message: those of its cut form, the stored count times the factor if it is unchanged, or a new count."""
        if entry is not None and entry.seq in self.cuts:
            return self.cuts[entry.seq].tokens
        if entry is None or message is not entry.message or message.media:
            return self.room.count.message(message)  # the factor gives no upper bound for pictures
        return math.ceil(entry.tokens * self.room.factor)

    def _count_override(self, override: MessageOverride) -> int:
        """Return the tokens of a message that is sent in place of an entry's own message."""
        if override.seq in self.cuts:
            return self.cuts[override.seq].tokens
        return (
            self.room.count.message(override.message)
            if override.message.media
            else math.ceil(override.tokens * self.room.factor)
        )

    def _cut_unit(self, unit: Unit, caps: Mapping[int, int]) -> dict[int, Cut]:
        """Return, by `seq`, the cut form of each message of `unit` that `caps` names and that cutting makes shorter."""
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
                item = self.room.reads_items and seq == self.compacting
                shorter = cut(message, caps[seq], seq=seq, count=count, loads=loads, marker=marker, keeps_item=item)
            made = Cut(count.message(shorter), shorter, whole=shorter is message)
            if made.tokens < tokens:
                cuts[seq] = made
        return cuts

    def _with(self, **changes: Any) -> Window:
        window = Window(self.room, anchor=self.anchor, anchored=self.anchored)
        window.__dict__.update(self.__dict__, _said=None, **changes)
        return window
