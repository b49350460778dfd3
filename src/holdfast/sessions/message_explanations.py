"""Explain messages of a session: whether and where a prompt contains them, why, when they left it, and what would bring them back."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Responder
from holdfast.context.explain import Overhead, list_decisions, measure_compactions
from holdfast.context.fitting import RESERVE
from holdfast.context.presence import Presence, PromptContents
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import EntryNotFound, InvalidRequest
from holdfast.limits import (
    EXPLAIN_CHARS,
    EXPLAIN_MATCHES,
    EXPLAIN_QUERY_CHARS,
    EXPLAIN_SCANNED,
    EXPLAIN_TEXT_CHARS,
)
from holdfast.numbers import check_whole
from holdfast.sessions.explanation import SHOWN, Explanation, MessageExplanation, Remedy
from holdfast.sessions.past_prompts import find_departure
from holdfast.sessions.prompt_lookup import FoundPrompt, PromptRequest, find_prompt
from holdfast.tools.search import SEARCH
from holdfast.wire.sendable import check_text

MATCHES: Final = 10
"""Default number of messages to explain."""
_PAGE: Final = 200
"""Number of messages that are read at a time in a search for text."""
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
        engine, ref = self._engine, self.ref
        session = await engine.store.get(ref)
        if turn is not None:
            check_turn(session, turn)
        responder = engine.roster.with_request(self.responder, strategy, budget)
        entries, earlier = await find_entries(engine, ref, seq=seq, text=text, before=before, limit=limit)
        dialect, is_own = responder.llm.dialect, responder is self.responder
        look = PromptRequest(responder=responder, dialect=dialect, at_turn=turn, use_recorded=is_own, compare=True)
        found = await find_prompt(engine, ref, look)
        explainer = _Explainer(engine, session, found)
        messages = tuple([await explainer.explain(entry, text) for entry in entries])
        record = found.prompt.record
        return Explanation(
            session_id=ref.id,
            turn=turn,
            exact=await run_cpu(lambda: found.prompt.is_exact),
            not_sent=found.not_sent,
            strategy=record.strategy,
            tokens=record.tokens,
            budget=record.limit,
            frontier=record.frontier,
            compactions=tuple(measure_compactions(record)),
            recalled=record.recalled,
            overhead=Overhead.from_record(record),
            decisions=() if entries or text is not None else tuple(list_decisions(record)),
            messages=messages,
            before=earlier,
            has_more=earlier is not None,
        )


def check_turn(session: Session, turn: int) -> None:
    """Raise `InvalidRequest` if a session has no such turn."""
    check_whole(turn, "turn")
    if turn >= session.turns:
        known = f"the last one is {session.turns - 1}" if session.turns else "it has none yet"
        raise InvalidRequest(f"the session has no turn {turn}: {known}", param="turn")


# -- finding messages ------------------------------------------------------------


async def find_entries(
    engine: Engine,
    ref: SessionRef,
    *,
    seq: int | None = None,
    text: str | None = None,
    before: int | None = None,
    limit: int = MATCHES,
) -> tuple[list[Entry], int | None]:
    """Return the message `seq`, or those that contain `text`, newest first.

    The second value is the `seq` before which an earlier page continues; None if there is no earlier page. Raises `InvalidRequest` if an
    argument is invalid.
    """
    _check_query(seq, text, before, limit)
    if seq is not None:
        found = await engine.store.entries(ref, start=seq, stop=seq + 1, retired=True)
        if not found:
            raise EntryNotFound(ref.id, seq)
        return list(found), None
    if text is None:
        return [], None
    words, stop = _fold(text), before
    matches: list[Entry] = []
    for _ in range(EXPLAIN_SCANNED // _PAGE):
        page = await engine.store.entries(ref, stop=stop, limit=_PAGE, descending=True, retired=True)
        for entry in await run_cpu(_select_matches, page, words):
            matches.append(entry)
            if len(matches) == limit:
                return matches, entry.seq or None
        if len(page) < _PAGE:
            return matches, None
        stop = page[-1].seq
    return matches, stop


def _check_query(seq: int | None, text: str | None, before: int | None, limit: int) -> None:
    check_text(text, "text", none=True)
    for name, value in (("seq", seq), ("before", before)):
        if value is not None:
            check_whole(value, name)
    check_whole(limit, "limit", 1, EXPLAIN_MATCHES)
    if text is not None and seq is not None:
        raise InvalidRequest("give seq or a text, not both", param="seq")
    if text is not None and not 1 <= len(text.strip()) <= EXPLAIN_QUERY_CHARS:
        message = f"the text must have 1 to {EXPLAIN_QUERY_CHARS} characters, and more than white space"
        raise InvalidRequest(message, param="text")
    if before is not None and text is None:
        raise InvalidRequest("before requires a text: it selects the next page of matching messages", param="before")


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


def mark_message(entry: Entry, presence: Presence, limit: int, **more: Any) -> dict[str, Any]:
    """Return the fields of a `MessageMark`.

    Args:
        entry: the message.
        presence: how much of it a prompt contains.
        limit: maximum number of characters of its text.
        more: other fields.
    """
    text = "" if entry.erased else get_text(entry).lstrip("\n")
    return {
        "seq": entry.seq,
        "turn_id": entry.turn_id,
        "role": entry.message.role,
        "agent": entry.agent,
        "timestamp": entry.timestamp,
        "tokens": entry.tokens,
        "pinned": entry.pinned,
        "importance": entry.importance,
        "text": text[:limit],
        "shortened": len(text) > limit,
        **msgspec.structs.asdict(presence),
        **more,
    }


class _Explainer:
    """Explains whether and how a prompt contains messages.

    Args:
        engine: the tenant's engine.
        session: the session.
        found: the prompt.
    """

    def __init__(self, engine: Engine, session: Session, found: FoundPrompt) -> None:
        self._engine, self._session, self._responder, self._found = engine, session, found.responder, found
        self._record = found.prompt.record
        self._contents = PromptContents(found.prompt)

    async def explain(self, entry: Entry, text: str | None) -> MessageExplanation:
        """Explain a message, which contains `text` if it was searched for."""
        presence = await run_cpu(self._contents.find_presence, entry)
        departure = None
        if presence.state != "whole" and presence.decision in ("compacted", "evicted", "cut", "cleared"):
            call = self._found.prompt.call
            key = call.view if call else self._responder.view_key
            turn = call.turn_id if call else self._session.turns
            departure = await find_departure(self._engine.store, self._session.ref, key, entry, turn)
        fields = mark_message(
            entry,
            presence,
            EXPLAIN_TEXT_CHARS,
            match=quote_match(get_text(entry), text) if text is not None else None,
            departure=departure,
            remedies=tuple(self._list_remedies(entry, presence)),
            redacted=_REDACTED in entry.message.text,
        )
        return MessageExplanation(**fields)

    def _list_remedies(self, entry: Entry, presence: Presence) -> list[Remedy]:
        record = self._record
        if presence.state == "whole" or presence.cause in ("later", "branch", "empty", "unreadable"):
            return []
        if presence.decision in _GONE:
            text = "append it again as a new message; messages that were taken back or erased are never sent"
            return [Remedy("append", text)]
        if presence.decision == "refused":
            call = f"session.annotate({entry.seq}, refused_by=[])"
            return [Remedy("send", "send it to its upstream again", call=call)]
        remedies = []
        if not entry.pinned and presence.decision != "cut":
            text = f"pin it, which adds its {entry.tokens:,} tokens to every prompt"
            if entry.tokens > _LARGE_PIN * record.limit:
                text += f", or fewer if the budget of {record.limit:,} tokens is too small for it"
            remedies.append(Remedy("pin", text, call=f"session.annotate({entry.seq}, pinned=True)"))
        size = self._responder.strategy.window_size
        if presence.cause == "outside":
            remedies.append(Remedy("history", "raise `sessions.max_messages` of the configuration"))
        elif size is not None and presence.decision != "cut":
            remedies.append(Remedy("window_size", f"raise window_size above {size}"))
        else:
            remedies.append(self._suggest_budget())
        if presence.cause == "summarized":
            remedies.append(Remedy("summary", "drop the summary", call="session.drop_compaction(id)"))
        if entry.message.role != "tool":  # recall finds what the user and the assistant said, not results of tools
            remedies.append(_suggest_recall(self._engine, self._responder))
        return remedies

    def _suggest_budget(self) -> Remedy:
        """Return a budget with which nothing is left out, if the budget alone decides that, and the model has one that is large enough."""
        record, strategy, counter = self._record, self._responder.strategy, self._responder.llm.counter
        limited = strategy.window_size is not None or strategy.summarizer is not None or strategy.history
        rounding = 0 if counter.factor == 1.0 else record.end[0] + 1
        needed = (record.end[1] * counter.factor + rounding + RESERVE) / (strategy.threshold or 1.0)
        budget = math.ceil(needed / _ROUND) * _ROUND
        if limited or not strategy.bounded or not record.limit < budget <= record.input_budget - sum(record.overhead):
            text = f"raise the budget of {record.limit:,} tokens, or use a model with a larger window"
            return Remedy("budget", text)
        text = f"raise the budget from {record.limit:,} to {budget:,} tokens, which leaves nothing out"
        return Remedy("budget", text, budget)


_ROUND: Final = 10
"""Suggested budgets are multiples of this number of tokens."""
_LARGE_PIN: Final = 1 / 8
"""Share of the budget above which a pinned message may be shortened, because the task, the current message and the digest need room too."""


def _suggest_recall(engine: Engine, responder: Responder) -> Remedy:
    if responder.strategy.recall or SEARCH in responder.tools.tools or "conversation" in responder.recalls:
        return Remedy("recall", "ask about it: messages that answer a question are recalled from the log")
    if engine.index is not None:
        text = "set `search` for the agent: the log is indexed, so the message is recalled when someone asks about it"
    else:
        text = (
            "turn on the index and set `search` for the agent: then the message is recalled when someone asks about it"
        )
    return Remedy("recall", text)
