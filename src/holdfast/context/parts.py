"""The record of a prompt: the list of its parts, from which exactly this prompt is assembled again.

A part is a range of messages that were sent as they are in the log, or one message whose text is stored with the session (`PromptText`). A
record also says why each message of the log was sent or left out, so that an explanation is a lookup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from holdfast.context.dialects import Dialect
from holdfast.context.fitting import is_added
from holdfast.context.prefix_diff import hash_messages
from holdfast.context.settings import ContextSettings, examine
from holdfast.context.units import Unit, list_messages
from holdfast.context.window import Compaction, LeftOut, Window
from holdfast.domain.messages import Message, decode_payload, encode_without_origin
from holdfast.domain.session import Entry, ModelCall, PromptText

if TYPE_CHECKING:
    from holdfast.context.recalled import Introduction, RecalledBlock

PartKind = Literal[
    "recent", "chosen", "pinned", "system", "introduction", "facts", "summary", "digest", "recalled", "added"
]
"""Kind of a part. `recent`, `chosen` and `pinned` are messages of the log: those of the tail, older ones, and pinned ones."""
Form = Literal["whole", "cut", "cleared", "trimmed", "refused", "changed"]
"""Form in which a message of the log is sent: `cut` is shortened, `cleared` a note in place of a result, `trimmed` a reply without the
arguments of its calls, `refused` a note in place of what a provider refused, and `changed` complete, but adapted or quoted."""
LOG_KINDS: Final = frozenset({"recent", "chosen", "pinned"})
"""Kinds of parts that are messages of the log."""
_LISTED: Final = 24
"""Number of parts above which the beginning of the list becomes a text of its own, which the next records share."""
ERASED_TEXT: Final = "[erased]"
"""Text in place of a text that quoted a message that was erased since."""
UNSTORED: Final = "[not stored: it has values of temp: keys]"
"""Text in place of a system message that is not stored."""


class Part(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Consecutive messages of a prompt that have the same kind and form."""

    kind: PartKind
    first: int = -1
    last: int = -1
    """`seq` of the first and last message of the log that is sent (of which each is one message), or that a text replaces; -1: none."""
    before: int = 0
    after: int = 0
    """Stored tokens of all live entries before `first`, and up to and including `last`."""
    tokens: int = 0
    """Tokens in the prompt; for whole messages as stored."""
    form: Form = "whole"
    texts: tuple[int, ...] = ()
    """`PromptText.id` of the lines of the message; empty for whole messages."""


class Mark(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A message that is sent for a reason of its own."""

    cause: Literal["task", "standing", "item", "current"]
    seq: int
    before: int
    after: int
    """`before` and `after` are stored tokens of all live entries before the message, and up to it."""


class PromptRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, kw_only=True):
    """The record of a prompt, which is stored with its model call."""

    strategy: str
    options: dict[str, Any]
    """Options that were set for the strategy."""
    agent: str | None
    llm: str
    """Name of the model in the configuration."""
    dialect: Dialect
    limit: int
    """Maximum tokens of the conversation."""
    tokens: int
    """Tokens of the conversation."""
    input_budget: int
    overhead: tuple[int, int, int, int]
    """Tokens of the system prompt, the tools, the introduction, and the start of the reply."""
    reserves: tuple[int, ...]
    """The model's context window and its reserves, for tool results, counting errors and the reply; empty if they are not known."""
    messages: int
    """Number of messages."""
    common: int
    """Number of messages at the beginning that equal those of the view's previous prompt; -1 if that prompt was not known."""
    frontier: int
    """`seq` of the first message that is sent because it is recent."""
    slides: bool
    """True if the strategy keeps a number of messages, so that newer ones take the place of older ones."""
    marks: tuple[Mark, ...]
    outside: tuple[int, int]
    """The `seq` before which the strategy sees nothing, and the stored tokens of all live entries before it."""
    end: tuple[int, int]
    """`seq` of the newest entry, and the stored tokens of all live entries up to it."""
    left_out: tuple[LeftOut, ...]
    refused: dict[int, str]
    """Reasons for which messages are left out because the provider refused them, by `seq`."""
    marker: str
    recalled: tuple[str, ...]
    """`RecalledItem.id` of the recalled items."""
    recalled_tokens: int
    missed: tuple[str, ...]
    """Reasons why items may be missing from the recalled block."""
    known: tuple[str, ...]
    """Ids of the promoted memories in the session's introduction."""
    recalled_at: int
    """Index of the recalled block in the prompt; -1: none."""
    leading: tuple[Part, ...]
    """The system prompt and the introduction."""
    block: Part | None
    """The recalled block."""
    base: int
    """`PromptText.id` of the first parts of the conversation; 0: `parts` are all of them."""
    parts: tuple[Part, ...]
    """The conversation."""

    @property
    def settings(self) -> ContextSettings | None:
        """The settings of the strategy; None if this process does not have it."""
        _, problems = examine({"strategy": self.strategy, **self.options})
        return None if problems else ContextSettings(self.strategy, self.options)

    @property
    def log_parts(self) -> list[Part]:
        """The parts that are messages of the log, in the order of the log."""
        return sorted((part for part in self.parts if part.kind in LOG_KINDS), key=lambda part: part.first)

    def find_mark(self, cause: str) -> int:
        """Return the `seq` of the message that is sent for this reason; -1 if there is none."""
        return next((mark.seq for mark in self.marks if mark.cause == cause), -1)

    def find_part(self, seq: int) -> Part | None:
        """Return the part in which a message of the log is sent; None if it is not sent as a message."""
        return next((part for part in self.parts if part.kind in LOG_KINDS and part.first <= seq <= part.last), None)

    def find_text(self, kind: PartKind) -> Part | None:
        """Return the part of this kind; None if there is none."""
        return next((part for part in self.parts if part.kind == kind), None)

    def is_sent_whole(self, seq: int) -> bool:
        """Return True if a message is sent completely."""
        part = self.find_part(seq)
        return part is not None and part.form in ("whole", "changed")

    def list_places(self) -> list[tuple[Part, int | None]]:
        """Return the part of each message of the prompt, and the `seq` of its entry in the log; None for a message without an entry."""
        places: list[tuple[Part, int | None]] = []
        for part in (*self.leading, *self.parts):
            if part.kind not in LOG_KINDS:
                places.append((part, None))
            elif part.texts:  # one message, which may stand for several entries
                places.append((part, part.first))
            else:
                places += [(part, seq) for seq in range(part.first, part.last + 1)]
        if self.block is not None:
            places.insert(self.recalled_at, (self.block, None))
        return places

    def list_seqs(self) -> list[int | None]:
        """Return the `seq` of the log entry of each message of the prompt; None for a message without an entry."""
        return [seq for _, seq in self.list_places()]


_pack = msgspec.msgpack.Encoder().encode
_unpack_record = msgspec.msgpack.Decoder(PromptRecord).decode
_encode_text = msgspec.json.Encoder().encode
_decode_lines = msgspec.json.Decoder(str).decode
_decode_parts = msgspec.json.Decoder(tuple[Part, ...]).decode


def encode_record(record: PromptRecord) -> bytes:
    """Encode a record for storage."""
    return _pack(record)


def decode_record(data: bytes) -> PromptRecord | None:
    """Return a stored record; None if there is none, or if another version wrote it in a different format."""
    try:
        return _unpack_record(data)
    except msgspec.MsgspecError:
        return None


def _make_text(
    content: Message | str | Sequence[Part], source: str | None = None, first: int = -1, last: int = -1
) -> PromptText:
    data = encode_without_origin(content) if isinstance(content, Message) else _encode_text(content)
    number = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest()) >> 1
    return PromptText(number, data, source, first, last)


# -- making records ----------------------------------------------------------


class _PartList:
    """Parts in order, and the texts to which they refer."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.texts: dict[int, PromptText] = {}

    def copy(self) -> _PartList:
        made = _PartList()
        made.parts, made.texts = [*self.parts], {**self.texts}
        return made

    def add_run(self, kind: PartKind, first: Entry, last: Entry) -> None:
        """Add messages that are sent as they are in the log, from one entry to another without gaps."""
        before = first.total - first.tokens
        one = self.parts[-1] if self.parts else None
        if one is not None and one.kind == kind and one.last + 1 == first.seq and not one.texts:
            tokens = one.tokens + last.total - before
            self.parts[-1] = Part(kind, one.first, last.seq, one.before, last.total, tokens)
        else:
            self.parts.append(Part(kind, first.seq, last.seq, before, last.total, last.total - before))

    def add_text(self, part: Part, texts: Iterable[PromptText]) -> None:
        """Add a message that is not sent as it is in the log."""
        made = tuple(texts)
        self.texts |= {text.id: text for text in made}
        self.parts.append(msgspec.structs.replace(part, texts=tuple(text.id for text in made)))


class PartTracker:
    """Lists the parts of the successive prompts of a view. While a window only grows, only its new units are listed."""

    def __init__(self) -> None:
        self._lister: _WindowLister | None = None
        self._leading: tuple[Message, ...] = ()
        self._leading_parts: _PartList = _PartList()
        self._base: tuple[Part, ...] = ()
        self._base_text: PromptText | None = None

    def list_leading(
        self, messages: tuple[Message, ...], introduction: Introduction | None, unstored: Sequence[Message]
    ) -> _PartList:
        """Return the parts before the conversation.

        Args:
            messages: the messages before the conversation.
            introduction: the introduction among them; None: there is none.
            unstored: those of the messages whose text must not be stored.
        """
        if messages == self._leading and not unstored:
            return self._leading_parts
        listed = _PartList()
        for message in messages:
            if introduction is not None and message is introduction.message:
                listed.add_text(Part("introduction"), _divide_lines(message, [(one, -1) for one in introduction.ids]))
            elif any(message is one for one in unstored):
                listed.parts.append(Part("system"))
            else:
                listed.add_text(Part("system"), [_make_text(message)])
        self._leading, self._leading_parts = () if unstored else messages, listed
        return listed

    def list_conversation(
        self,
        window: Window,
        conversation: Sequence[Message],
        refused: Mapping[int, str],
        *,
        is_adapted: bool,
        is_replaced: bool,
    ) -> tuple[_PartList, tuple[Mark, ...]]:
        """Return the parts of the conversation, and the messages that are sent for a reason of their own.

        Args:
            window: the window from which the conversation was made.
            conversation: its messages.
            refused: messages that are replaced by a note because the provider refused them.
            is_adapted: True if the messages were adapted to the provider's API.
            is_replaced: True if messages or parts of them were replaced because the provider refused them.
        """
        lister = self._lister
        if lister is None or lister.window is not window or lister.is_adapted != is_adapted or is_replaced:
            lister = _WindowLister(window, is_adapted=is_adapted or is_replaced)
        lister.extend(conversation, refused)
        self._lister = None if is_replaced else lister
        return lister.finish(), lister.list_marks()

    def share_base(self, parts: tuple[Part, ...]) -> tuple[PromptText | None, tuple[Part, ...]]:
        """Divide a long list of parts: return a text with the first ones, which stays the same for a while, and the other parts."""
        if len(parts) <= _LISTED:
            return None, parts
        size = len(self._base)
        if self._base_text is None or parts[:size] != self._base or len(parts) - size > _LISTED:
            size = len(parts) - 1  # the last part grows
            self._base, self._base_text = parts[:size], _make_text(parts[:size])
        return self._base_text, parts[size:]


class _WindowLister:
    """Lists the parts of a window.

    Args:
        window: the window. Later, it may grow.
        is_adapted: True if the messages may differ from those of the window.
    """

    def __init__(self, window: Window, *, is_adapted: bool) -> None:
        self.window, self.is_adapted = window, is_adapted
        self.firsts: dict[int, Entry] = {}
        """The first entry of each unit, by `seq`."""
        self._listed = _PartList()
        self._units = -1
        """Number of units of the tail that are listed; -1: nothing is."""
        self._place = 0
        """Number of messages that are listed."""
        self._conversation: Sequence[Message] = ()
        self._refused: Mapping[int, str] = {}

    def extend(self, conversation: Sequence[Message], refused: Mapping[int, str]) -> None:
        """List what is new in the window, in the order in which it is sent."""
        self._conversation, self._refused = conversation, refused
        units = self.window.units
        if self._units < 0:
            before, compactions, after, tasks = self.window.compute_layout()
            self._add_units("chosen", before)
            self._add_units("recent", units[:tasks])
            for one in compactions:
                self._add_compaction(one)
            self._add_units("chosen", after)
            self._add_units("recent", units[tasks:])
        else:
            self._add_units("recent", units[self._units :])
        self._units = len(units)

    def finish(self) -> _PartList:
        """Return the parts of the whole conversation."""
        if not self.is_adapted or self._place == len(self._conversation):
            return self._listed
        listed = self._listed.copy()
        for message in self._conversation[self._place :]:
            listed.add_text(Part("added"), [_make_text(message)])
        return listed

    def list_marks(self) -> tuple[Mark, ...]:
        """Return the messages that are sent for a reason of their own, the strongest reason first."""
        window = self.window
        named: list[tuple[Any, int | None]] = [("task", window.anchor if window.anchored else None)]
        named += [("standing", seq) for seq in window.standing]
        named += [("item", window.compacting), ("current", window.current)]
        found = [(cause, self.firsts[seq]) for cause, seq in named if seq in self.firsts]
        return tuple([Mark(cause, one.seq, one.total - one.tokens, one.total) for cause, one in found])

    def _add_units(self, place: PartKind, units: Sequence[Unit]) -> None:
        """List units. The first and last entry of those that are sent unchanged are joined to runs."""
        cuts, run = self.window.cuts, list[Any]()
        for unit in units:
            entries = unit.entries
            first, last = entries[0], entries[-1]
            self.firsts[first.seq] = first
            kind: PartKind = place
            if first.pinned or (len(entries) > 1 and any(one.pinned for one in entries)):
                kind = "pinned"
            plain = unit.plain and last.seq - first.seq == len(entries) - 1
            if plain and not (cuts and any(one.seq in cuts for one in entries)) and self._passes(entries):
                if run and run[0] == kind and run[2].seq + 1 == first.seq:
                    run[2] = last
                    continue
                if run:
                    self._listed.add_run(*run)
                run = [kind, first, last]
                continue
            if run:
                self._listed.add_run(*run)
                run = []
            self._add_unit(kind, unit)
        if run:
            self._listed.add_run(*run)

    def _passes(self, entries: Sequence[Entry]) -> bool:
        """Return True if the next messages of the conversation are those of the entries."""
        if self.is_adapted:
            sent = self._conversation[self._place : self._place + len(entries)]
            if len(sent) < len(entries) or any(a is not b.message for a, b in zip(sent, entries, strict=True)):
                return False
            self._place += len(entries)
        return True

    def _add_unit(self, kind: PartKind, unit: Unit) -> None:
        """List the messages of a unit one by one. What an agent is told of a round stands for the entries that it replaces, too."""
        entries = {entry.seq: entry for entry in unit.entries}
        messages = list(list_messages(unit, self.window.room.marker))
        ends = dict[int, Entry]()  # by the entry that is sent: the last one for which its message stands
        sent = {seq for seq, _ in messages}
        at = unit.entries[0].seq
        for one in unit.entries:
            at = one.seq if one.seq in sent else at
            ends[at] = one
        for seq, message in messages:
            entry, cut = (None, None) if seq is None else (entries.get(seq), self.window.cuts.get(seq))
            shown = self._take_next(message if cut is None else cut.message)
            if entry is None:
                self._add_message(Part("added"), shown)
            elif shown is entry.message or shown == entry.message:
                self._listed.add_run(kind, entry, entry)
            else:
                form: Form = "changed"
                if entry.seq in self._refused:
                    form = "refused"
                elif cut is not None and not cut.whole:
                    form = "cut" if not cut.cleared else "cleared" if entry.message.role == "tool" else "trimmed"
                last, before = ends[entry.seq], entry.total - entry.tokens
                tokens = last.total - before if cut is None or form in ("changed", "refused") else cut.tokens
                part = Part(kind, entry.seq, last.seq, before, last.total, tokens, form)
                self._add_message(part, shown)

    def _add_compaction(self, one: Compaction) -> None:
        self._take_next(one.message)
        part = Part(one.kind, one.first, one.last, 0, one.total, one.tokens)
        self._listed.add_text(part, [_make_text(one.text, None, one.first, one.last)])

    def _add_message(self, part: Part, message: Message) -> None:
        self._listed.add_text(part, [_make_text(message, None, part.first, part.last)])

    def _take_next(self, message: Message) -> Message:
        """Return the form in which the next message of the window is sent. Messages that a format requires are listed first."""
        if not self.is_adapted:
            return message
        while is_added(shown := self._conversation[self._place]):
            self._add_message(Part("added"), shown)
            self._place += 1
        self._place += 1
        return shown


def list_block(block: RecalledBlock, tokens: int) -> tuple[Part, tuple[PromptText, ...]]:
    """Return the part of the recalled block, and its texts."""
    sources = [_find_source(item.id, item.seq) for item in block.items]
    texts = _divide_lines(block.message, sources)
    return Part("recalled", tokens=tokens, texts=tuple(text.id for text in texts)), texts


def _find_source(item_id: str, seq: int | None) -> tuple[str | None, int]:
    """Return the session or memory that a recalled item quotes, and the `seq` of its message. No session: its own one."""
    if seq is not None:
        return None, seq
    session_id, mark, number = item_id.rpartition("#")
    return (session_id, int(number)) if mark and number.isdigit() else (item_id, -1)


def _divide_lines(message: Message, sources: Sequence[tuple[str | None, int]]) -> tuple[PromptText, ...]:
    """Return the lines of a block as texts. Each line between the first and the last one quotes one of the sources."""
    lines = message.text.split("\n")
    if len(lines) != len(sources) + 2:  # one text, which cannot be divided by its sources
        first = min((seq for _, seq in sources), default=-1)
        last = max((seq for _, seq in sources), default=-1)
        return (_make_text(message.text, next((one for one, _ in sources if one), None), first, last),)
    middle = [_make_text(line, one, seq, seq) for line, (one, seq) in zip(lines[1:-1], sources, strict=True)]
    return (_make_text(lines[0]), *middle, _make_text(lines[-1]))


# -- assembling prompts ------------------------------------------------------


class SentMessage(NamedTuple):
    """A message of a prompt, and the part that it belongs to."""

    message: Message
    part: Part
    seq: int | None
    """`seq` of the message of the log; None if it is no message of the log."""


class ShownPrompt(NamedTuple):
    """A prompt with its record: one that was sent, assembled again, or one that was built and not sent."""

    record: PromptRecord
    """The record, with all parts."""
    messages: Sequence[SentMessage]
    texts: Mapping[int, PromptText]
    """The texts to which the record refers, by id. Those that quote erased messages are missing in a prompt that was assembled."""
    entries: Mapping[int, Entry]
    """The messages of the log that it contains, by `seq`."""
    call: ModelCall | None = None
    """The recorded call; None: the prompt was not sent."""

    @property
    def hash(self) -> str:
        """Hash of the messages."""
        return hash_messages([one.message for one in self.messages])

    @property
    def is_exact(self) -> bool | None:
        """True if these are exactly the messages that were sent, False if some were erased; None if the prompt was not sent."""
        return None if self.call is None else self.call.hash.hex() == self.hash

    @property
    def total_tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.record.tokens + sum(self.record.overhead) + self.record.recalled_tokens

    def list_sources(self) -> list[Entry | None]:
        """Return the entry of each message; None for one without an entry."""
        return [None if one.seq is None else self.entries.get(one.seq) for one in self.messages]

    def list_lines(self, part: Part) -> list[PromptText]:
        """Return the texts of a part that are stored."""
        return [self.texts[number] for number in part.texts if number in self.texts]


def expand_record(record: PromptRecord, base: PromptText) -> PromptRecord:
    """Return a record with all parts of the conversation, of which the first ones are in a text."""
    return msgspec.structs.replace(record, base=0, parts=(*_decode_parts(base.data), *record.parts))


def list_text_ids(record: PromptRecord) -> list[int]:
    """Return the ids of the texts that a prompt is assembled from."""
    parts = (*record.leading, *record.parts, *((record.block,) if record.block else ()))
    return list(dict.fromkeys(text for part in parts for text in part.texts))


def assemble_prompt(
    record: PromptRecord,
    entries: Mapping[int, Entry],
    texts: Mapping[int, PromptText],
    call: ModelCall | None = None,
) -> ShownPrompt:
    """Return a prompt from its record. What was erased since then is blank in it.

    Args:
        record: the record, with all parts.
        entries: the messages of the log, by `seq`.
        texts: the texts, by id.
        call: the recorded call.
    """
    messages = [
        SentMessage(_assemble_message(part, None if seq is None else entries.get(seq), texts), part, seq)
        for part, seq in record.list_places()
    ]
    return ShownPrompt(record, messages, texts, entries, call)


def _assemble_message(part: Part, entry: Entry | None, texts: Mapping[int, PromptText]) -> Message:
    if part.kind in LOG_KINDS and not part.texts:
        return Message(role="user", content=ERASED_TEXT) if entry is None else entry.message
    found = [texts[number].data if number in texts else None for number in part.texts]
    if len(found) == 1 and found[0] is not None and found[0][:1] == b"{":
        return decode_payload(found[0])
    role = entry.message.role if entry else "system" if part.kind in ("system", "introduction") else "user"
    lines = [ERASED_TEXT if data is None else _decode_lines(data) for data in found] or [UNSTORED]
    return Message(role=role, content="\n".join(lines))


def decode_lines(text: PromptText) -> str:
    """Return a stored text that is part of a message."""
    return _decode_lines(text.data)
