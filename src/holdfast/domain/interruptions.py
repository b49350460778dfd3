"""Compute how much of an interrupted reply was heard, and cut the reply to that part. Pure functions.

A reply is what a client receives as one message: the last text of a turn, with the rounds of tool calls directly before
it. The log keeps the part of an interrupted reply that was heard, marked as interrupted, together with the whole
generated text. A tool call after the cut is dropped with its result, as if the model had never made it.
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
"""Assumed speed of speech in characters per second: 150 words a minute. Used if the duration of the whole reply is
unknown."""
APART: Final = "\n\n"
"""Separator between a text next to tool calls and the text that follows, if there is no white space between them."""
_WORDS: Final = re.compile(
    r"\s*(?:[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\s\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+)"
)
"""Pattern for words. Chinese and Japanese have no spaces between words, so each of their characters is one word."""
_TRAILING: Final = ".-\u2026\u2013\u2014"
"""Characters that transcribers put at the end of an interrupted text."""
_OF_THE_WHOLE: Final = frozenset({"audio", "annotations"})
"""Fields of an assistant message that describe the message's whole text, so they are wrong for a part of the text."""


HEARD: Final = ("content", "chars", "ms", "total_ms", "timestamp", "turn_id")
"""Names of the fields in a report of how much was heard."""


class HeardReport(msgspec.Struct, frozen=True, kw_only=True):
    """A client's report of how much of a reply was heard. Without any field, all of it was heard."""

    content: str | None = None
    """The text that was heard."""
    chars: int | None = None
    """Length of the heard text in Unicode code points."""
    ms: int | None = None
    """Milliseconds for which the reply was spoken."""
    total_ms: int | None = None
    """Milliseconds that speaking the whole reply would have taken; None: `SPEAKING_RATE` is assumed."""
    timestamp: int | None = None
    """Milliseconds since the epoch at which the reply was interrupted; None: now."""
    turn_id: int | None = None
    """The turn that the reply must belong to; None: any turn."""

    @property
    def is_everything(self) -> bool:
        """True if no field says that only a part was heard."""
        return self.content is None and self.chars is None and self.ms is None


def parse_heard(given: dict[str, Any]) -> HeardReport:
    """Check the fields of a client's report of how much was heard, and return the report.

    Raises:
        InvalidRequest: a field has an invalid value, or two fields contradict each other.
    """
    report = {name: value for name, value in given.items() if value is not None}
    for name, value in report.items():
        if name == "content":
            if not isinstance(value, str):
                raise InvalidRequest("content must be the text that was heard, a string", param=name)
        else:
            check_whole(value, name)
    how = [name for name in ("content", "chars", "ms") if name in report]
    if len(how) > 1:
        raise InvalidRequest(f"{' and '.join(how)} both say how much was heard: send one of them", param=how[1])
    if "total_ms" in report and (not report["total_ms"] or "ms" not in report):
        raise InvalidRequest(
            "total_ms is the duration of the whole reply; it must be above 0 and requires ms", param="total_ms"
        )
    return HeardReport(**report)


def count_heard_chars(text: str, heard: HeardReport) -> int:
    """Return how many characters of `text` were heard; at most its length, even if the report claims more.

    Raises:
        HeardMismatch: the text does not begin with the content in the report.
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
    """Return the offset in `text` at which the heard text ends, ignoring differences in white space.

    Raises:
        HeardMismatch: `text` does not begin with the heard text.
    """
    reply, words = "".join(text.split()), "".join(heard.split())
    if not reply.startswith(words):
        words = words.rstrip(_TRAILING)
    if not reply.startswith(words):
        raise HeardMismatch(
            "content does not match the beginning of the reply: send the heard text exactly as in the reply",
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
    """Return the end of the last word that is completely within the first `reached` characters.

    White space after the word belongs to it.
    """
    at = 0
    for word in _WORDS.finditer(text, 0, min(reached, len(text)) + 1):
        if word.end() > reached:
            break
        at = word.end()
    while at and at < len(text) and text[at].isspace():
        at += 1
    return at


# -- cutting a reply ----------------------------------------------------------------


class ReplyRound(msgspec.Struct, frozen=True):
    """One assistant message of a reply, and the results of its tool calls."""

    head: Entry
    results: tuple[Entry, ...] = ()

    @property
    def text(self) -> str:
        """The text of the message. For an interrupted round, all text that was generated from this message on.

        Empty if an agent wrote only for the next agents of a workflow, so that the client did not receive the text.
        """
        if STEP in (self.head.metadata or {}):
            return ""
        whole = (self.head.metadata or {}).get("original")
        return whole if isinstance(whole, str) and self.cut else self.head.message.text

    @property
    def cut(self) -> bool:
        """True if the log already marks the round as interrupted."""
        return bool((self.head.metadata or {}).get("interrupted"))

    def list_answered(self) -> tuple[int, ...]:
        """Return the indexes of the round's tool calls that have a result. Several calls may have the same id."""
        ids = [result.message.tool_call_id for result in self.results]
        found = []
        for at, call in enumerate(self.head.message.tool_calls):
            if call.id in ids:
                ids.remove(call.id)
                found.append(at)
        return tuple(found)

    @property
    def open(self) -> bool:
        """True if at least one of the round's tool calls has no result yet."""
        return len(self.list_answered()) < len(self.head.message.tool_calls)


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A change that cuts a reply: the reply's entries from `head` on are retired, and the kept part is written again."""

    head: Entry
    """The first entry that is retired. `message` replaces it."""
    message: Message | None
    """The part of the message of `head` that is kept; None if no part is kept."""
    metadata: dict[str, Any] | None
    results: tuple[Entry, ...] = ()
    """Kept results of the tool calls in `message`."""


def split_rounds(entries: Sequence[Entry]) -> list[ReplyRound]:
    """Group the entries of a reply into rounds. A result without a tool call belongs to the round of the entry before it."""
    rounds: list[ReplyRound] = []
    for entry in entries:
        if entry.kind == "result" and rounds:
            rounds[-1] = ReplyRound(rounds[-1].head, (*rounds[-1].results, entry))
        else:
            rounds.append(ReplyRound(entry))
    return rounds


def join_reply_text(rounds: Sequence[ReplyRound]) -> str:
    """Return the generated text of a whole reply, as the client received it."""
    return _join_texts("", rounds)


def cut_reply(rounds: Sequence[ReplyRound], at: int, now: int) -> Cut | None:
    """Cut a reply, of which only the first `at` characters were heard.

    Args:
        rounds: the reply's rounds; at least one.
        at: the number of heard characters, from `count_heard_chars`.
        now: milliseconds since the epoch at which the reply was interrupted.

    Returns:
        The change to the reply's entries; None if they stay unchanged.
    """
    whole, sent, number = join_reply_text(rounds), "", 0
    for number, one in enumerate(rounds):  # noqa: B007 - the last round if no round reaches that far
        sent = _join_texts(sent, [one])
        if len(sent) > at:
            break
    one, before = rounds[number], sent[: len(sent) - len(rounds[number].text)]
    if len(before) + len(one.text) > at:
        cut = _shorten(one, (before, whole), max(0, at - len(before)), now)
    else:
        cut = _remove_open_calls(one, (before, whole), now) if one.open else None
    while cut is not None and cut.message is None and number and rounds[number - 1].open:
        # Unanswered calls must not become the end of the log either.
        number -= 1
        cut = _remove_open_calls(rounds[number], (_get_text_before(rounds, number), whole), now)
    return cut


def _get_text_before(rounds: Sequence[ReplyRound], number: int) -> str:
    """Return the text that the client received before the round with the index `number`."""
    sent = join_reply_text(rounds[: number + 1])
    return sent[: len(sent) - len(rounds[number].text)]


_Around = tuple[str, str]
"""The text that the client received before a round, and the whole generated text of the reply, which begins with it."""


def _shorten(one: ReplyRound, around: _Around, length: int, now: int) -> Cut | None:
    """Cut a round of which only the first `length` characters of text were heard. Return None if its text is not longer than that."""
    if one.cut and length >= len(one.head.message.text):
        return None  # the round was already cut there or earlier
    if not one.text[:length].strip():
        return Cut(head=one.head, message=None, metadata=None)
    message = _cut_message(one.head.message, length)
    return Cut(head=one.head, message=message, metadata=_mark_interrupted(one, around, now))


def _remove_open_calls(one: ReplyRound, around: _Around, now: int) -> Cut:
    """Cut a round that was heard completely, so that none of its tool calls is without a result."""
    kept = one.list_answered()
    calls = tuple(one.head.message.tool_calls[at] for at in kept)
    unheard = STEP in (one.head.metadata or {}) or not one.head.message.text.strip()
    if not calls and unheard:
        return Cut(head=one.head, message=None, metadata=None)
    returned = (one.head.metadata or {}).get("returned")
    metadata = _mark_interrupted(one, around, now)
    if calls and not isinstance(returned, list):
        metadata.pop("preface", None)  # the client never received this message with calls
    if calls and isinstance(returned, list):
        metadata["returned"] = [number for number, at in enumerate(kept) if at in returned]
    message = one.head.message.evolve(tool_calls=calls)
    return Cut(head=one.head, message=message, metadata=metadata, results=one.results if calls else ())


def _join_texts(before: str, rounds: Sequence[ReplyRound]) -> str:
    """Return `before` followed by the texts of `rounds`, joined as a client receives them."""
    for text in (one.text for one in rounds if one.text):
        apart = APART if before and not before[-1].isspace() and not text[0].isspace() else ""
        before += apart + text
    return before


def _cut_message(message: Message, length: int) -> Message:
    """Return the message with the first `length` characters of its text, the media between them, and no tool calls."""
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
            part = evolve(part, text=part.text[:length])  # noqa: PLW2901 - the shortened part
            length -= len(part.text or "")
        parts.append(part)
    return tuple(parts)


def _mark_interrupted(one: ReplyRound, around: _Around, now: int) -> dict[str, Any]:
    """Return the metadata of an interrupted round.

    `original` contains all text that was generated from this round on. `preface` contains the text before this round,
    because a client may send the whole reply as one message, which must be recognised. If the metadata are too large
    for an entry, `preface` is left out first, then `original`.
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
