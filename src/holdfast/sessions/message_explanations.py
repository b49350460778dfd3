"""Explain messages of a session: whether and where a prompt contains them, why, when they left it, and what would bring them back."""

from __future__ import annotations

import heapq
import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Responder
from holdfast.context.explain import OUTSIDE, SUMMARIZED, UNSEEN, BuildRecord, decode_record
from holdfast.context.presence import Departure, Presence, PromptContents, find_first_beyond, find_least_budget
from holdfast.context.strategies import NO_CONTENT, UNREADABLE
from holdfast.domain.session import Entry, ModelCall, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import EntryNotFound, InvalidRequest
from holdfast.limits import (
    EXPLAIN_BUDGETED,
    EXPLAIN_BUDGETED_MATCHES,
    EXPLAIN_BUDGETED_TOKENS,
    EXPLAIN_CHARS,
    EXPLAIN_MATCHES,
    EXPLAIN_QUERY_CHARS,
    EXPLAIN_REBUILT,
    EXPLAIN_REBUILT_TOKENS,
    EXPLAIN_SCANNED,
    EXPLAIN_SIMILAR,
    EXPLAIN_TEXT_CHARS,
    PAGE,
)
from holdfast.numbers import check_whole
from holdfast.sessions.context_preview import rebuild_context
from holdfast.sessions.explanation import SHOWN, Explanation, MessageExplanation, Remedy, SimilarMessage
from holdfast.sessions.preview_objects import Preview, PreviewRequest
from holdfast.tools.search import SEARCH
from holdfast.wire.sendable import check_text

MATCHES: Final = 10
"""Default number of messages to explain."""
_PAGE: Final = 200
"""Number of messages that are read at a time in a search for text."""
_LEAST_WORD: Final = 3
"""Least characters of a word that is looked for if no message contains the whole text."""
_WORD: Final = re.compile(r"\w+")
_REDACTED: Final = "[REDACTED:"
_GONE: Final = frozenset({"erased", "retired", "note"})
"""Reasons for leaving a message out of the prompt that no setting can change."""


class ExplainedSession:
    """Adds the method `explain` to `SessionHandle`: why a prompt contains messages or leaves them out."""

    @property
    def _engine(self) -> Engine:
        raise NotImplementedError

    ref: SessionRef
    responder: Responder

    async def explain(
        self,
        *,
        seq: int | None = None,
        text: str | None = None,
        turn: int | None = None,
        before: int | None = None,
        limit: int = MATCHES,
        strategy: str | None = None,
        budget: int | None = None,
    ) -> Explanation:
        """Explain whether messages are in the prompt completely, in part or not at all, and why.

        The result also says where in the prompt the messages are, when they left it, and what would bring them back. Without `seq` and
        `text`, the result lists which messages the prompt contains, as ranges with the reason. Print the result to read it.

        Args:
            seq: the message.
            text: text that the messages must contain, as an alternative to `seq`. Case and white space are ignored.
            turn: explain the prompt of this turn's last model call; None: the prompt that would be built now.
            before: with `text`: only messages before this `seq`. Pass `Explanation.before` of the previous page.
            limit: with `text`: maximum number of messages, from 1 to `EXPLAIN_MATCHES`; the newest come first.
            strategy: explain the prompt that this strategy would give, with default settings; None: the session's strategy or, with `turn`,
                the one of that turn.
            budget: explain the prompt with this token limit for the conversation; None: the strategy's.

        Raises:
            InvalidRequest: an argument is invalid, or the session has no such turn.
            EntryNotFound: the session has no message `seq`.
            BudgetTooSmall: no valid prompt fits.
        """
        wanted = ExplainQuery(
            seq=seq, text=text, turn=turn, before=before, limit=limit, strategy=strategy, budget=budget
        )
        return await explain_messages(self._engine, self.ref, self.responder, wanted)


class ExplainQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for an explanation: which messages, and which prompt; see `ExplainedSession.explain`."""

    seq: int | None = None
    text: str | None = None
    turn: int | None = None
    before: int | None = None
    limit: int = MATCHES
    strategy: str | None = None
    budget: int | None = None

    def check(self) -> None:
        """Raise `InvalidRequest` if a field is invalid."""
        check_text(self.text, "text", none=True)
        for name in ("seq", "turn", "before"):
            if (value := getattr(self, name)) is not None:
                check_whole(value, name)
        check_whole(self.limit, "limit", 1, EXPLAIN_MATCHES)
        if self.text is not None and self.seq is not None:
            raise InvalidRequest("give seq or a text, not both", param="seq")
        if self.text is not None and not 1 <= len(self.text.strip()) <= EXPLAIN_QUERY_CHARS:
            message = f"the text must have 1 to {EXPLAIN_QUERY_CHARS} characters, and more than white space"
            raise InvalidRequest(message, param="text")
        if self.before is not None and self.text is None:
            raise InvalidRequest(
                "before requires a text: it selects the next page of matching messages", param="before"
            )


async def explain_messages(engine: Engine, ref: SessionRef, responder: Responder, wanted: ExplainQuery) -> Explanation:
    """Explain messages of a session. Nothing is stored, and the session does not count as used. See `ExplainedSession.explain`."""
    wanted.check()
    session = await engine.store.get(ref)
    if wanted.turn is not None and wanted.turn >= session.turns:
        known = f"the last one is {session.turns - 1}" if session.turns else "it has none yet"
        raise InvalidRequest(f"the session has no turn {wanted.turn}: {known}", param="turn")
    own, responder = responder, engine.roster.with_request(responder, wanted.strategy, wanted.budget)
    entries, before = await find_entries(engine, ref, wanted)
    look = PreviewRequest(
        responder=responder,
        settings=responder.context,
        dialect=responder.llm.dialect,
        at_turn=wanted.turn,
        use_recorded=responder is own,
        touch=False,
        explain=can_rebuild(session),
        trace=frozenset(entry.seq for entry in entries if not entry.erased),
    )
    found = await rebuild_context(engine, ref, look)
    make = partial(_build_explanation, engine, ref, responder, found, entries)
    explanation = msgspec.structs.replace(
        await run_cpu(partial(make, words=wanted.text, budgets=_count_budgets(session, wanted))),
        turn=wanted.turn,
        before=before,
        has_more=before is not None,
    )
    if wanted.text is not None and wanted.before is None and not entries and before is None:
        explanation = msgspec.structs.replace(explanation, similar=await _find_similar(engine, ref, wanted.text))
    key = found.call.view if found.call else responder.view_key
    messages = await _add_departures(engine, ref, key, wanted, explanation.messages)
    return msgspec.structs.replace(explanation, messages=tuple(messages))


def can_rebuild(session: Session) -> bool:
    """Return True if the session is short enough to rebuild its past prompts."""
    return session.messages <= EXPLAIN_REBUILT and session.tokens <= EXPLAIN_REBUILT_TOKENS


def _count_budgets(session: Session, wanted: ExplainQuery) -> int:
    """Return the number of messages for which a sufficient budget may be searched.

    The number is limited so that all searches together take no longer than one search in the longest session that is allowed.
    """
    count = 1 if wanted.text is None else EXPLAIN_BUDGETED_MATCHES
    is_short = session.messages * count <= EXPLAIN_BUDGETED and session.tokens * count <= EXPLAIN_BUDGETED_TOKENS
    return count if is_short else 0


# -- finding messages ------------------------------------------------------------


async def find_entries(engine: Engine, ref: SessionRef, wanted: ExplainQuery) -> tuple[list[Entry], int | None]:
    """Return the messages of a query, newest first, and the `seq` before which an earlier page continues; None if there is no earlier page."""
    if wanted.seq is not None:
        found = await engine.store.entries(ref, start=wanted.seq, stop=wanted.seq + 1, retired=True)
        if not found:
            raise EntryNotFound(ref.id, wanted.seq)
        return list(found), None
    if wanted.text is None:
        return [], None
    words, stop = _fold(wanted.text), wanted.before
    matches: list[Entry] = []
    for _ in range(EXPLAIN_SCANNED // _PAGE):
        page = await engine.store.entries(ref, stop=stop, limit=_PAGE, descending=True, retired=True)
        for entry in await run_cpu(_select_matches, page, words):
            matches.append(entry)
            if len(matches) == wanted.limit:
                return matches, entry.seq or None
        if len(page) < _PAGE:
            return matches, None
        stop = page[-1].seq
    return matches, stop


def _select_matches(entries: Sequence[Entry], words: str) -> list[Entry]:
    return [entry for entry in entries if not entry.erased and words in _fold(get_text(entry))]


def get_text(entry: Entry) -> str:
    """Return the text of an entry, followed by the arguments of its tool calls in readable form."""
    return "\n".join((entry.message.text, *(decode_escapes(call.arguments) for call in entry.message.tool_calls)))


def decode_escapes(arguments: str) -> str:
    r"""Return JSON with letters in place of escapes such as `\u00f8`; other texts are returned unchanged.

    >>> decode_escapes('{"city": "Bod\\u00f8"}')
    '{"city": "Bodø"}'
    """
    if "\\u" not in arguments or len(arguments) > EXPLAIN_CHARS:
        return arguments
    try:
        decoded = json.dumps(json.loads(arguments), ensure_ascii=False)
        decoded.encode()  # a half of a surrogate pair cannot be shown
    except (ValueError, RecursionError):
        return arguments
    return decoded


def _fold(text: str) -> str:
    return " ".join(text.split()).casefold()


async def _find_similar(engine: Engine, ref: SessionRef, text: str) -> tuple[SimilarMessage, ...]:
    """Return messages that have some of the words of a text, the best first. The newest `EXPLAIN_SCANNED` messages are searched."""
    words = [word for word in dict.fromkeys(_WORD.findall(text.casefold())) if len(word) >= _LEAST_WORD]
    stop, found = None, list[tuple[int, int, Entry]]()
    for _ in range(EXPLAIN_SCANNED // PAGE if words else 0):
        page = await engine.store.entries(ref, stop=stop, limit=PAGE, descending=True, retired=True)
        found = heapq.nlargest(EXPLAIN_SIMILAR, [*found, *await run_cpu(_weigh_matches, page, words)])
        if len(page) < PAGE:
            break
        stop = page[-1].seq
    return tuple(await run_cpu(lambda: [_describe_similar(entry, words) for *_, entry in found]))


def _weigh_matches(entries: Sequence[Entry], words: Sequence[str]) -> list[tuple[int, int, Entry]]:
    """Return the entries with at least a third of the characters of `words`, each with its weight and its `seq`."""
    least, weighed = sum(map(len, words)) / 3, []
    for entry in entries:
        if not entry.erased and not entry.is_note:
            text = get_text(entry)[:EXPLAIN_CHARS].casefold()
            weight = sum(len(word) for word in words if word in text)
            if weight >= least:
                weighed.append((weight, entry.seq, entry))
    return weighed


def _describe_similar(entry: Entry, words: Sequence[str]) -> SimilarMessage:
    text = get_text(entry)[:EXPLAIN_CHARS]
    found = tuple(word for word in words if word in text.casefold())
    quote = quote_match(text, max(found, key=len))
    return SimilarMessage(
        seq=entry.seq,
        turn_id=entry.turn_id,
        role=entry.message.role,
        timestamp=entry.timestamp,
        text=quote,
        words=found,
    )


def quote_match(text: str, words: str) -> str:
    """Return the part of `text` around the first occurrence of `words`, on one line.

    >>> quote_match("A long preface. " * 20 + "I must not eat nuts. " + "And so on. " * 20, "NOT  eat")
    '…A long preface. A long preface. I must not eat nuts. And so on. And so on. And so on. And so…'
    """
    flat, words = " ".join(text.split()), _fold(words)
    folded = flat.casefold()
    start = folded.find(words)
    end = start + len(words)
    if len(folded) != len(flat):  # "ß" folds to two characters
        start, end = (bisect_left(range(len(flat)), at, key=lambda n: len(flat[:n].casefold())) for at in (start, end))
    margin = max(0, SHOWN - (end - start)) // 2
    first = max(0, min(start - margin, len(flat) - SHOWN))
    last = max(end, first + SHOWN)
    first = flat.find(" ", first, start) + 1 or first if first else 0
    last = max(end, flat.rfind(" ", end, last)) if last < len(flat) else len(flat)
    return f"{'…' if first else ''}{flat[first:last]}{'…' if last < len(flat) else ''}"


# -- explaining messages -------------------------------------------------------


def _build_explanation(
    engine: Engine,
    ref: SessionRef,
    responder: Responder,
    found: Preview,
    entries: Sequence[Entry],
    *,
    words: str | None,
    budgets: int,
) -> Explanation:
    """Describe a prompt, and explain whether and how the prompt contains each of `entries`.

    Args:
        engine: the tenant's engine.
        ref: the session.
        responder: the responder of the session.
        found: the prompt.
        entries: the messages to explain. If there are none and `words` is None, the result lists the decisions on all messages.
        words: the text by which a search selected `entries`; None if they were selected otherwise.
        budgets: for at most this many messages, find out which budget would be large enough to keep the message.
    """
    call, built = found.call, found.built
    contents = PromptContents(built, find_recalled(found.record, ref))
    messages = []
    for entry in entries:
        presence = contents.find_presence(entry)
        remedies = _list_remedies(engine, responder, found, entry, presence, with_budget=budgets > 0)
        budgets -= any(one.kind == "budget" for one in remedies)
        left = found.departures.get(entry.seq) if presence.state != "whole" else None
        explained = _explain_message(entry, presence, left, remedies)
        match = quote_match(get_text(entry), words) if words is not None else None
        messages.append(msgspec.structs.replace(explained, match=match))
    return Explanation(
        session_id=ref.id,
        exact=call.hash.hex() == built.hash if call else None,
        not_sent=found.not_sent,
        strategy=built.request.strategy.name,
        tokens=built.tokens,
        budget=built.budget,
        frontier=built.window.units[0].first if built.window.units else 0,
        compactions=tuple(built.list_compactions()),
        recalled=found.record.recalled if found.record else built.recalled.ids if built.recalled else (),
        overhead=_measure_overhead(found),
        decisions=() if entries or words is not None else tuple(built.list_decisions()),
        messages=tuple(messages),
    )


def _explain_message(
    entry: Entry, presence: Presence, departure: Departure | None, remedies: Sequence[Remedy]
) -> MessageExplanation:
    return MessageExplanation(
        seq=entry.seq,
        turn_id=entry.turn_id,
        role=entry.message.role,
        timestamp=entry.timestamp,
        tokens=entry.tokens,
        text="" if entry.erased else get_text(entry)[:EXPLAIN_TEXT_CHARS],
        **msgspec.structs.asdict(presence),
        departure=departure,
        remedies=tuple(remedies),
        redacted=_REDACTED in entry.message.text,
    )


def _measure_overhead(found: Preview) -> dict[str, int]:
    """Return the tokens that a prompt has in addition to the conversation.

    The tools of a past call are not recorded. Their tokens are the recorded overhead of the call minus its other parts.
    """
    overhead, record = found.built.overhead, found.record
    if record is None:
        return overhead.to_wire(found.built.recalled_tokens)
    tools = max(0, record.overhead - overhead + overhead.tools)
    return {**overhead.to_wire(record.recalled_tokens), "tools": tools}


def find_recalled(record: BuildRecord | None, ref: SessionRef) -> set[int]:
    """Return the `seq` of the session's own messages that a recorded prompt recalled."""
    own = [one.removeprefix(f"{ref.id}#") for one in record.recalled if one.startswith(f"{ref.id}#")] if record else []
    return {int(seq) for seq in own if seq.isascii() and seq.isdigit()}


_LARGE_PIN: Final = 1 / 8
"""Share of the budget above which a pinned message may be shortened, because the task, the current message and the digest need room too."""


def _list_remedies(
    engine: Engine, responder: Responder, found: Preview, entry: Entry, presence: Presence, *, with_budget: bool
) -> list[Remedy]:
    built = found.built
    if presence.state == "whole" or presence.decision == "later" or presence.reason in (UNSEEN, NO_CONTENT, UNREADABLE):
        return []
    if presence.decision in _GONE:
        return [
            Remedy("append", "append it again as a new message; messages that were taken back or erased are never sent")
        ]
    if presence.decision == "refused":
        return [Remedy("send", "send it to its upstream again", call=f"session.annotate({entry.seq}, refused_by=[])")]
    remedies = []
    if not entry.pinned and presence.decision != "cut":
        text = f"pin it, which adds its {entry.tokens:,} tokens to every prompt"
        if entry.tokens > _LARGE_PIN * built.budget:
            text += f", or fewer if the budget of {built.budget:,} tokens is too small for it"
        remedies.append(Remedy("pin", text, call=f"session.annotate({entry.seq}, pinned=True)"))
    if presence.reason == OUTSIDE:
        remedies.append(Remedy("history", "raise `sessions.max_messages` of the configuration"))
    elif built.request.strategy.window_size is not None and presence.decision != "cut":
        remedies.append(Remedy("window_size", f"raise window_size above {built.request.strategy.window_size}"))
    else:
        remedies += _suggest_budget(found, entry.seq, search=with_budget)
    if presence.reason == SUMMARIZED:
        remedies.append(Remedy("summary", "drop the summary", call="session.drop_compaction(id)"))
    if entry.message.role != "tool":  # recall finds what the user and the assistant said, not results of tools
        remedies.append(_suggest_recall(engine, responder))
    return remedies


def _suggest_budget(found: Preview, seq: int, *, search: bool) -> list[Remedy]:
    built = found.built
    budget = None
    if search and found.entries:
        entries = [entry for entry in found.entries if entry.seq <= built.through]
        request = built.request
        if found.record is not None:  # the prompt was rebuilt with its recorded budget
            request = msgspec.structs.replace(request, input_budget=found.record.input_budget)
        budget = find_least_budget(request, entries, seq, built.budget)
    if budget is not None:
        return [
            Remedy(
                "budget", f"raise the budget from {built.budget:,} to {budget:,} tokens, which keeps it whole", budget
            )
        ]
    return [Remedy("budget", f"raise the budget of {built.budget:,} tokens, or use a model with a larger window")]


def _suggest_recall(engine: Engine, responder: Responder) -> Remedy:
    if responder.strategy.recall or SEARCH in responder.tools.tools or "conversation" in responder.recalls:
        return Remedy("recall", "ask about it: messages that answer a question are recalled from the log")
    if engine.index is not None:
        return Remedy(
            "recall",
            "set `search` for the agent: the log is indexed, so the message is recalled when someone asks about it",
        )
    return Remedy(
        "recall",
        "turn on the index and set `search` for the agent: then the message is recalled when someone asks about it",
    )


# -- departures --------------------------------------------------------------------


async def _add_departures(
    engine: Engine, ref: SessionRef, key: str, wanted: ExplainQuery, explained: Sequence[MessageExplanation]
) -> Sequence[MessageExplanation]:
    """Add the times at which messages left the prompt, if rebuilt prompts do not show them.

    These times are computed from the recorded position of each call before which messages were no longer sent verbatim.
    """
    open_ = [one for one in explained if _is_departure_unknown(one)]
    if not open_:
        return explained
    recorded = await engine.store.calls(ref, limit=PAGE)
    calls = _decode(recorded, key, wanted.turn)
    found: dict[int, Departure | None] = {}
    for one in open_:
        left = find_first_beyond(calls, one.seq)
        if len(recorded) == PAGE and left == find_first_beyond(
            calls[:1], one.seq
        ):  # the message left the prompt before the calls that were read
            left = await _search_turns(engine, ref, key, one, left) if wanted.seq is not None else None
        found[one.seq] = left
    return [msgspec.structs.replace(one, departure=found.get(one.seq, one.departure)) for one in explained]


def _is_departure_unknown(one: MessageExplanation) -> bool:
    return one.departure is None and one.state != "whole" and one.decision in ("compacted", "evicted")


def _decode(calls: Sequence[ModelCall], key: str, turn: int | None = None) -> list[tuple[ModelCall, BuildRecord]]:
    """Return those of `calls` that used the view `key`, up to a turn, oldest first, with their build records."""
    own = [call for call in reversed(calls) if call.view == key and (turn is None or call.turn_id <= turn)]
    return [(call, record) for call in own if (record := decode_record(call.build)) is not None]


async def _search_turns(
    engine: Engine, ref: SessionRef, key: str, one: MessageExplanation, known: Departure | None
) -> Departure | None:
    """Find, by bisection over the turns, when a message left the prompt, if that was before the model calls that were read.

    Args:
        engine: the tenant's engine.
        ref: the session.
        key: key of the view (the cached state of prompts for one agent and its settings).
        one: the message.
        known: the earliest known time at which the message had left the prompt; None: the message has not left it.

    Returns:
        The first turn whose prompts no longer contained the message, because they began after it.
    """
    low = one.turn_id
    while known is not None and known.turn_id - low > 1:
        middle = (low + known.turn_id) // 2
        earlier = find_first_beyond(await _read_calls(engine, ref, key, middle), one.seq)
        low, known = (middle, known) if earlier is None else (low, earlier)
    if known is None or not known.turn_id:
        return known
    before = await _read_calls(engine, ref, key, known.turn_id - 1)
    return find_first_beyond([*before, *await _read_calls(engine, ref, key, known.turn_id)], one.seq) or known


async def _read_calls(engine: Engine, ref: SessionRef, key: str, turn: int) -> list[tuple[ModelCall, BuildRecord]]:
    return _decode(await engine.store.calls(ref, limit=PAGE, turn_id=turn), key)
