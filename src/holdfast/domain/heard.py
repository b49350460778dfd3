"""How much of a reply was heard, and what a log has of it then. Pure functions.

A reply is what a client was sent as one message: the last thing that was said in a turn, with the rounds of tool calls right before
it. Of one that was interrupted stays what was heard, marked, with what was generated beside it. A tool call that stood behind
the place of the cut is dropped, and so is what came of it: to the model it never was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec
from msgspec.structs import replace as evolve

from holdfast.domain.messages import Content, Message, Part
from holdfast.domain.session import STEP, Entry
from holdfast.errors import HeardMismatch, InvalidRequest
from holdfast.limits import METADATA_BYTES
from holdfast.numbers import check_whole

SPEAKING_RATE: Final = 15
"""Characters that are taken to be spoken in a second, where nobody says how long the whole would have taken: 150 words a minute."""
APART: Final = "\n\n"
"""Between a text that stood with calls and what follows, where no white space does."""
_WORDS: Final = re.compile(
    r"\s*(?:[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\s\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+)"
)
"""Words; Chinese and Japanese have no spaces between theirs, so there each character is one."""
_TRAILING: Final = ".-\u2026\u2013\u2014"
"""What a transcriber ends a text with that was broken off."""
_OF_THE_WHOLE: Final = frozenset({"audio", "annotations"})
"""Fields of an assistant's message that tell of all of its text."""


HEARD: Final = ("content", "chars", "ms", "total_ms", "timestamp", "turn_id")
"""Names of what can be said of how much was heard."""


class HeardReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of how much of a reply was heard; without anything, all that there is of it. See `heard_from`."""

    content: str | None = None
    """The text."""
    chars: int | None = None
    """Its length in characters, Unicode's code points."""
    ms: int | None = None
    """For how many milliseconds it was spoken."""
    total_ms: int | None = None
    """How many the whole would have taken; None: see `SPEAKING_RATE`."""
    timestamp: int | None = None
    """Milliseconds since the epoch: when that was; None: now."""
    turn_id: int | None = None
    """The turn that the reply must be of; None: any."""

    @property
    def is_everything(self) -> bool:
        """Whether all of it was heard, as far as anybody says."""
        return self.content is None and self.chars is None and self.ms is None


def parse_heard(given: dict[str, Any]) -> HeardReport:
    """What somebody says was heard, checked. Raises `InvalidRequest`."""
    told = {name: value for name, value in given.items() if value is not None}
    for name, value in told.items():
        if name == "content":
            if not isinstance(value, str):
                raise InvalidRequest("content must be the text that was heard, a string", param=name)
        else:
            check_whole(value, name)
    how = [name for name in ("content", "chars", "ms") if name in told]
    if len(how) > 1:
        raise InvalidRequest(f"{' and '.join(how)} both say how much was heard: send one of them", param=how[1])
    if "total_ms" in told and (not told["total_ms"] or "ms" not in told):
        raise InvalidRequest(
            "total_ms is how long the whole would have taken, above 0, and stands with ms", param="total_ms"
        )
    return HeardReport(**told)


def count_heard_chars(text: str, heard: HeardReport) -> int:
    """How many characters of `text` were heard; its length where all of it was, or more than there is.

    Raises:
        HeardMismatch: it does not begin with what is said to have been heard.
    """
    if heard.content is not None:
        return _find_shared_end(text, heard.content)
    if heard.chars is not None:
        return min(heard.chars, len(text))
    if heard.ms is None:
        return len(text)
    whole = len(text) if heard.total_ms else SPEAKING_RATE
    return _find_word_end(text, whole * heard.ms // (heard.total_ms or 1000))


def _find_shared_end(text: str, heard: str) -> int:
    """Where `heard` ends in `text`, however both set their words apart."""
    said, words = "".join(text.split()), "".join(heard.split())
    if not said.startswith(words):
        words = words.rstrip(_TRAILING)
    if not said.startswith(words):
        raise HeardMismatch(
            "content is no beginning of what was said: send the text that was heard, as the reply has it",
            param="content",
        )
    if not words:
        return 0
    solid = accumulate(0 if character.isspace() else 1 for character in text)
    at = next(place for place, count in enumerate(solid, 1) if count == len(words))
    trailing = len(heard) - len(heard.rstrip())
    while trailing and at < len(text) and text[at].isspace():
        at, trailing = at + 1, trailing - 1
    return at


def _find_word_end(text: str, reached: int) -> int:
    """Where the last word ends that is wholly within the first `reached` characters, the white space behind it included."""
    at = 0
    for word in _WORDS.finditer(text, 0, min(reached, len(text)) + 1):
        if word.end() > reached:
            break
        at = word.end()
    while at and at < len(text) and text[at].isspace():
        at += 1
    return at


# -- a reply, and what stays of it --------------------------------------------------


class ReplyRound(msgspec.Struct, frozen=True):
    """A message of a reply, and the results of its calls."""

    head: Entry
    results: tuple[Entry, ...] = ()

    @property
    def text(self) -> str:
        """What was generated of it for the client: nothing where an agent spoke to those behind it alone."""
        if STEP in (self.head.metadata or {}):
            return ""
        whole = (self.head.metadata or {}).get("original")
        return whole if isinstance(whole, str) and self.cut else self.head.message.text

    @property
    def cut(self) -> bool:
        """Whether it was interrupted before."""
        return bool((self.head.metadata or {}).get("interrupted"))

    def list_answered(self) -> tuple[int, ...]:
        """Which of its calls have a result, by their index; ids may stand more than once."""
        ids = [result.message.tool_call_id for result in self.results]
        found = []
        for at, call in enumerate(self.head.message.tool_calls):
            if call.id in ids:
                ids.remove(call.id)
                found.append(at)
        return tuple(found)

    @property
    def open(self) -> bool:
        """Whether a call of it waits for its result."""
        return len(self.list_answered()) < len(self.head.message.tool_calls)


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a reply's entries from one on."""

    head: Entry
    """The first that leaves: what stays of it stands in its place."""
    message: Message | None
    """What stays; None: nothing."""
    metadata: dict[str, Any] | None
    results: tuple[Entry, ...] = ()
    """Results behind it that stay."""


def split_rounds(entries: Sequence[Entry]) -> list[ReplyRound]:
    """A reply's entries as rounds; a result without a call goes with what stands before it."""
    rounds: list[ReplyRound] = []
    for entry in entries:
        if entry.kind == "result" and rounds:
            rounds[-1] = ReplyRound(rounds[-1].head, (*rounds[-1].results, entry))
        else:
            rounds.append(ReplyRound(entry))
    return rounds


def join_reply_text(rounds: Sequence[ReplyRound]) -> str:
    """What was generated of a reply, as its client was sent it."""
    return _join_texts("", rounds)


def cut_reply(rounds: Sequence[ReplyRound], at: int, now: int) -> Cut | None:
    """What stays of a reply of whose text the first `at` characters were heard; None: all of it, as it is.

    Args:
        rounds: the reply's; at least one.
        at: see `count_heard_chars`.
        now: when it was interrupted, milliseconds since the epoch.
    """
    whole, sent, number = join_reply_text(rounds), "", 0
    for number, one in enumerate(rounds):  # noqa: B007 - the last one where none reaches so far
        sent = _join_texts(sent, [one])
        if len(sent) > at:
            break
    one, before = rounds[number], sent[: len(sent) - len(rounds[number].text)]
    if len(before) + len(one.text) > at:
        cut = _shorten(one, (before, whole), max(0, at - len(before)), now)
    else:
        cut = _remove_open_calls(one, (before, whole), now) if one.open else None
    while cut is not None and cut.message is None and number and rounds[number - 1].open:
        # Calls that were never answered, though something followed them, must not be the last thing either.
        number -= 1
        cut = _remove_open_calls(rounds[number], (_get_text_before(rounds, number), whole), now)
    return cut


def _get_text_before(rounds: Sequence[ReplyRound], number: int) -> str:
    """What the client was sent before a round."""
    sent = join_reply_text(rounds[: number + 1])
    return sent[: len(sent) - len(rounds[number].text)]


_Around = tuple[str, str]
"""What the client was sent before a round, and all that was generated of the reply, the same at its beginning."""


def _shorten(one: ReplyRound, around: _Around, length: int, now: int) -> Cut | None:
    """What stays of a round of whose text `length` characters were heard."""
    if one.cut and length >= len(one.head.message.text):
        return None  # it was cut there, or before, already
    if not one.text[:length].strip():
        return Cut(head=one.head, message=None, metadata=None)
    message = _cut_message(one.head.message, length)
    return Cut(head=one.head, message=message, metadata=_mark_interrupted(one, around, now))


def _remove_open_calls(one: ReplyRound, around: _Around, now: int) -> Cut:
    """What stays of a round that was heard, and whose calls nobody has answered yet."""
    kept = one.list_answered()
    calls = tuple(one.head.message.tool_calls[at] for at in kept)
    unheard = STEP in (one.head.metadata or {}) or not one.head.message.text.strip()
    if not calls and unheard:
        return Cut(head=one.head, message=None, metadata=None)
    returned = (one.head.metadata or {}).get("returned")
    metadata = _mark_interrupted(one, around, now)
    if calls and not isinstance(returned, list):
        metadata.pop("preface", None)  # of a message with calls, whose client has seen none of it
    if calls and isinstance(returned, list):
        metadata["returned"] = [number for number, at in enumerate(kept) if at in returned]
    message = one.head.message.evolve(tool_calls=calls)
    return Cut(head=one.head, message=message, metadata=metadata, results=one.results if calls else ())


def _join_texts(before: str, rounds: Sequence[ReplyRound]) -> str:
    """What a client was sent: the texts of `rounds` behind `before`."""
    for text in (one.text for one in rounds if one.text):
        apart = APART if before and not before[-1].isspace() and not text[0].isspace() else ""
        before += apart + text
    return before


def _cut_message(message: Message, length: int) -> Message:
    """The first `length` characters of a message's text, and the media among them; no calls."""
    extra = {name: value for name, value in message.extra.items() if name not in _OF_THE_WHOLE}
    return message.evolve(content=_cut_content(message.content, length), tool_calls=(), extra=extra)


def _cut_content(content: Content, length: int) -> Content:
    if not isinstance(content, tuple):
        return content[:length] if isinstance(content, str) else content
    parts: list[Part] = []
    for part in content:
        if length <= 0:
            break
        if part.text is not None:
            part = evolve(part, text=part.text[:length])  # noqa: PLW2901 - the part as it stays
            length -= len(part.text or "")
        parts.append(part)
    return tuple(parts)


def _mark_interrupted(one: ReplyRound, around: _Around, now: int) -> dict[str, Any]:
    """A round's metadata where it was interrupted: with all that was generated from there on.

    What came before is needed to know it again where the client sends all of the reply as one. What would not fit into an entry's metadata is left out: first what came before, then what was generated.
    """
    known = {name: value for name, value in (one.head.metadata or {}).items() if name not in {"preface", "returned"}}
    before, whole = around
    marked = {**known, "interrupted": True, "interrupt_timestamp": now, "original": whole[len(before) :]}
    if before:
        marked["preface"] = before
    for name in ("preface", "original"):
        if len(msgspec.json.encode(marked)) > METADATA_BYTES:
            marked.pop(name, None)
    return marked
