"""Compare a compaction with the messages that it replaces: which names, identifiers, numbers and dates are kept, and which are lost.

A compaction is a summary that is stored with the session, or a block of a prompt: a digest, a summary or standing facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, get_args

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Responder
from holdfast.context.summaries import iter_identifiers
from holdfast.domain.session import Entry, SessionRef, StoredCompaction
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidRequest
from holdfast.limits import COMPACTION_FACTS, COMPACTION_SCANNED, COMPACTION_SOURCES, EXPLAIN_CHARS, PROMPT_TEXT_CHARS
from holdfast.numbers import check_whole
from holdfast.sessions.message_explanations import get_text
from holdfast.sessions.prompt_views import PromptQuery, SourceMessage, view_prompt

BlockKind = Literal["facts", "summary", "digest"]
BLOCKS: Final[tuple[BlockKind, ...]] = get_args(BlockKind)
FactKind = Literal["identifier", "date", "number", "name"]
_COMPARED_CHARS: Final = 1_000_000
"""Characters of messages that one comparison searches for facts."""
_MONTHS: Final = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_DATE: Final = re.compile(
    rf"\b\d{{4}}-\d{{2}}-\d{{2}}\b|\b\d{{1,2}}[./]\d{{1,2}}[./]\d{{2,4}}\b|\b(?:{_MONTHS})[a-z]* \d{{1,2}}\b|\b\d{{1,2}}\.? (?:{_MONTHS})[a-z]*\b"
)
_NUMBER: Final = re.compile(r"(?<![\w.,-])\d+(?:[.,]\d+)+(?![\w-])|(?<![\w.,-])\d{2,}(?![\w-])")
_ESCAPE: Final = re.compile(r"\\u(?!d[89a-f])([0-9a-f]{4})")
_NAME: Final = re.compile(r"(?:(?<=[\w,;:] )|(?<=[\"“„(]))[A-Z\u00c0-\u00de][\w'’-]+(?: [A-Z\u00c0-\u00de][\w'’-]+)*")  # noqa: RUF001


class CompactionFact(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A name, an identifier, a number or a date in the messages that a compaction replaces."""

    text: str
    kind: FactKind
    seqs: tuple[int, ...]
    """`seq` of the first messages that contain it, at most three."""


class CompactionView(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A compaction next to the messages that it replaces."""

    object: Literal["compaction_view"] = "compaction_view"
    session_id: str
    kind: BlockKind
    first: int
    last: int
    """`first` and `last` are the `seq` of the first and the last message of the range."""
    text: str
    tokens: int
    source_tokens: int
    """Tokens of the messages that it replaces."""
    kept: tuple[CompactionFact, ...]
    """Facts that the text, or another part of the same prompt, contains; at most `COMPACTION_FACTS`."""
    lost: tuple[CompactionFact, ...]
    """Facts that neither the text nor the rest of the prompt contains; at most `COMPACTION_FACTS`. For a stored summary, only its text is
    searched."""
    kept_count: int
    lost_count: int
    scanned: int
    """Number of messages, the newest of the range, that were searched for facts."""
    sources: tuple[SourceMessage, ...]
    """A page of the messages of the range."""
    has_more: bool
    """True if there are messages of the range after those in `sources`."""


class _Compacted(NamedTuple):
    """The range and the text of a compaction."""

    kind: BlockKind
    first: int
    last: int
    text: str
    tokens: int
    source_tokens: int
    elsewhere: str = ""
    """Text of the rest of the prompt."""


async def view_stored_compaction(
    engine: Engine, ref: SessionRef, one: StoredCompaction, *, after: int | None = None, limit: int = 20
) -> CompactionView:
    """Compare a stored compaction with the messages of its range.

    Args:
        engine: the tenant's engine.
        ref: the session.
        one: the compaction.
        after: return messages after this `seq`; None: from the beginning of the range.
        limit: maximum number of messages to return, at most `COMPACTION_SOURCES`.
    """
    compacted = _Compacted(one.kind, one.first, one.last, one.text, one.tokens, one.source_tokens)
    return await _view(engine, ref, compacted, after, limit)


async def view_block(
    engine: Engine,
    ref: SessionRef,
    responder: Responder,
    call_id: str,
    block: str,
    *,
    after: int | None = None,
    limit: int = 20,
) -> CompactionView | None:
    """Compare a digest, a summary or standing facts of a prompt with the messages that they replace.

    Args:
        engine: the tenant's engine.
        ref: the session.
        responder: the responder of the session.
        call_id: the prompt; see `PromptQuery.id`.
        block: one of `BLOCKS`.
        after: see `view_stored_compaction`.
        limit: see `view_stored_compaction`.

    Returns:
        The comparison; None if the prompt has no such block.

    Raises:
        InvalidRequest: there is no such kind of block.
    """
    if block not in BLOCKS:
        raise InvalidRequest(f"block must be one of {', '.join(BLOCKS)}, not {block[:40]!r}", param="block")
    view = await view_prompt(engine, ref, responder, PromptQuery(id=call_id))
    size = next((one for one in view.compactions if one.kind == block), None)
    message = next((one.message for one in view.messages if one.section == block), None)
    if size is None or message is None:
        return None
    text = str(message.get("content") or "")
    rest = "\n".join(str(one.message.get("content") or "") for one in view.messages if one.section != block)
    compacted = _Compacted(block, size.first, size.last, text, size.tokens, size.source_tokens, rest)
    return await _view(engine, ref, compacted, after, limit)


async def _view(engine: Engine, ref: SessionRef, one: _Compacted, after: int | None, limit: int) -> CompactionView:
    check_whole(limit, "limit", 1, COMPACTION_SOURCES)
    if after is not None:
        check_whole(after, "after", -1)
    start = one.first if after is None else max(one.first, after + 1)
    read = engine.store.entries
    page = await read(ref, start=start, stop=one.last + 1, limit=limit + 1)
    scanned = await read(ref, start=one.first, stop=one.last + 1, limit=COMPACTION_SCANNED, descending=True)
    facts = await run_cpu(_compare, scanned[::-1], f"{one.text}\n{one.elsewhere}")
    fields = {name: value for name, value in one._asdict().items() if name != "elsewhere"}
    return CompactionView(
        session_id=ref.id,
        **fields,
        kept=tuple(facts[0][:COMPACTION_FACTS]),
        lost=tuple(facts[1][:COMPACTION_FACTS]),
        kept_count=len(facts[0]),
        lost_count=len(facts[1]),
        scanned=len(scanned),
        sources=tuple(_show_source(entry) for entry in page[:limit]),
        has_more=len(page) > limit,
    )


def _show_source(entry: Entry) -> SourceMessage:
    text = _get_text(entry)
    return SourceMessage(
        seq=entry.seq,
        turn_id=entry.turn_id,
        role=entry.message.role,
        timestamp=entry.timestamp,
        tokens=entry.tokens,
        text=text[:PROMPT_TEXT_CHARS],
        shortened=len(text) > PROMPT_TEXT_CHARS,
    )


def _get_text(entry: Entry) -> str:
    """Return the beginning of the text of a message. Escapes of JSON for letters are decoded."""
    text = "" if entry.erased else get_text(entry)[:EXPLAIN_CHARS].lstrip("\n")
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text) if "\\u" in text else text


def _compare(entries: Sequence[Entry], text: str) -> tuple[list[CompactionFact], list[CompactionFact]]:
    """Return the facts of messages that a text contains, and those that it does not contain. Facts of the user come first."""
    found: dict[str, tuple[str, FactKind, list[int]]] = {}
    left = _COMPARED_CHARS
    for entry in sorted(entries, key=lambda entry: entry.message.role != "user"):
        said = _get_text(entry)[:left]
        left -= len(said)
        for words, kind in iter_facts(said):
            seqs = found.setdefault(words.casefold(), (words, kind, []))[2]
            if len(seqs) < 3 and entry.seq not in seqs:
                seqs.append(entry.seq)
    within = text.casefold()
    facts = [
        (key in within, CompactionFact(text=words, kind=kind, seqs=(*seqs,)))
        for key, (words, kind, seqs) in found.items()
    ]
    return [fact for kept, fact in facts if kept], [fact for kept, fact in facts if not kept]


def iter_facts(text: str) -> Iterator[tuple[str, FactKind]]:
    """Yield the dates, identifiers, numbers and names of a text. A word is of the first of these kinds that it fits."""
    seen = set[str]()
    kinds: tuple[tuple[FactKind, Iterator[str]], ...] = (
        ("date", (found[0] for found in _DATE.finditer(text))),
        ("identifier", iter_identifiers(text)),
        ("number", (found[0] for found in _NUMBER.finditer(text))),
        ("name", (found[0] for found in _NAME.finditer(text))),
    )
    for kind, words in kinds:
        for word in words:
            if word not in seen:
                seen.add(word)
                yield word, kind
