"""The prompt view: what a model saw in one call, what it did not see, and what other settings would give."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from holdfast.context.settings import STRATEGIES
from holdfast.domain.objects import Count, json_schema
from holdfast.domain.session import Session
from holdfast.errors import HoldfastError
from holdfast.server.http import Call
from holdfast.server.inspector.frame import GLOBALS, Segment, Values, make_session_url
from holdfast.server.inspector.prompt_words import describe_run, name_decision
from holdfast.server.inspector.session import SESSION, SessionPageQuery, SessionPages
from holdfast.server.limits import INSPECTOR_MESSAGES
from holdfast.sessions.message_explanations import decode_escapes
from holdfast.sessions.model_calls import CallId, list_calls, parse_call_id
from holdfast.sessions.prompt_sections import FREE, PromptChange
from holdfast.sessions.prompt_views import NEXT, MessageMark, PromptMessage, PromptQuery, PromptView, view_prompt

routes = SessionPages()
SECTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "system": ("system", "System prompt"),
    "tools": ("tools", "Tools"),
    "introduction": ("introduction", "Memories"),
    "task": ("task", "Task"),
    "facts": ("facts", "Standing facts"),
    "summary": ("compaction", "Summary"),
    "digest": ("compaction", "Digest"),
    "pins": ("head", "Pinned"),
    "head": ("head", "Chosen older messages"),
    "tail": ("tail", "Recent messages"),
    "recalled": ("recalled", "Recalled"),
    "current": ("current", "Current message"),
    "added": ("tools", "Added by the format"),
    "free": ("headroom", "Free in the budget"),
    "unused": ("headroom", "Not used by the strategy"),
    "tool_results": ("reserve", "Kept free for tool results"),
    "safety": ("reserve", "Kept free for counting errors"),
    "reply": ("reserve", "Kept free for the reply"),
}
"""For each section of a prompt: the class of its colour, and its title."""
_DECISIONS: Final[Mapping[str, str]] = {
    "kept": "tail",
    "pinned": "head",
    "anchored": "task",
    "cut": "compaction",
    "cleared": "compaction",
    "compacted": "compaction",
    "evicted": "reserve",
    "refused": "bad",
}
"""For each decision about messages: the class of its colour."""
_LOG_SIZE: Final = 40
"""Messages of the log next to a prompt."""
_OPEN: Final = 12
"""Messages of each side of a comparison up to which they are shown at once."""
_STRIP: Final = 400
"""Most ranges that the strip of the log shows."""
Shape = Literal["openai", "anthropic", "gemini"]


class PromptPageQuery(SessionPageQuery, kw_only=True):
    """Query parameters of the prompt view."""

    call: str | None = None
    """Id of the call, number of a turn, or `next`; default: the last call."""
    shape: Shape | None = None
    """Show the prompt as the request to this provider."""
    start: Count = 0
    """First message of the prompt to show."""
    log_after: Annotated[int | None, json_schema(minimum=-1)] = None
    """Show the messages of the log after this one."""
    strategy: str | None = None
    """Another strategy to try."""
    budget: Count | None = None
    """Another budget to try."""
    model: str | None = None
    """Another model to try."""
    from_strategy: str | None = None
    """Compare with this strategy instead of the prompt as it was sent."""
    from_budget: Count | None = None
    """Compare with this budget instead of the prompt as it was sent."""

    @property
    def compares(self) -> bool:
        """True if other settings are wanted."""
        return any((self.strategy, self.budget, self.model, self.from_strategy, self.from_budget))


class Piece(NamedTuple):
    """A part of a text, and whether the prompt contains it."""

    text: str
    is_marked: bool


class ShownMessage(NamedTuple):
    """A message of a prompt as the page shows it."""

    place: int
    """Index of the message in the prompt."""
    message: PromptMessage
    change: str
    """`added` or `changed` since the call before; empty if neither."""
    breaks: bool
    """True if the provider's cache breaks here."""


class Side(NamedTuple):
    """One prompt of a comparison."""

    title: str
    view: PromptView | None
    error: str = ""


@routes.page(f"{SESSION}/prompt", "read", "prompt.html", "Prompt", tab="prompt")
async def show_prompt(call: Call, query: PromptPageQuery, session: Session) -> Values:
    """Return the prompt view of a session."""
    handle = call.hf.handle(session)
    call_id = await find_call_id(call, session, query.call)
    wanted = PromptQuery(
        id=call_id,
        dialect=query.shape,
        log_after=query.log_after,
        log_limit=0 if query.compares else _LOG_SIZE,
    )
    view = await view_prompt(call.hf.engine, session.ref, handle.responder, wanted)
    sides = await _compare(call, session, query, view) if query.compares else ()
    built = [side.view for side in sides if side.view]
    free = [Segment(*SECTIONS[one.name], one.tokens) for one in view.sections if one.name in FREE]
    return {
        "view": view,
        "position": view.call.turn_id if view.call else session.turns,
        "window": [Segment("accent", "Prompt", view.total_tokens), *free],
        "strip": _make_strip(session, view),
        "decisions": _sum_decisions(view),
        "messages": show_messages(view)[query.start : query.start + INSPECTOR_MESSAGES],
        "removed": _list_removed(view),
        "sides": sides,
        "widest": max((one.total_tokens + _get_free(one) for one in built), default=0),
        "in_log": [{one.seqs[0] for one in view.messages if one.kind == "entry"} for view in built],
        "opens_messages": all(len(one.messages) <= _OPEN for one in built),
        "keeps_room": bool(_get_free(view)) and any(run.decision in {"compacted", "evicted"} for run in view.decisions),
    }


async def find_call_id(call: Call, session: Session, given: str | None) -> str:
    """Return the id of the call to show: the last one, the given one or, for a turn without calls, the last one before."""
    turn_id, number = (None, None) if given in (None, NEXT) else parse_call_id(given or "", "call")
    if given == NEXT or number is not None:
        return given or NEXT
    if turn_id is not None and turn_id >= session.turns:
        return NEXT
    after = None if turn_id is None else CallId(turn_id + 1, 0)
    page = await list_calls(call.hf.engine, session, limit=1, after=after)
    return page.calls[0].id if page.calls else NEXT


async def _compare(call: Call, session: Session, query: PromptPageQuery, sent: PromptView) -> list[Side]:
    """Build the prompts of a comparison: the sent one or one with other settings, and one with other settings."""
    first = Side("As it was sent" if sent.call else "With the present settings", sent)
    if query.from_strategy or query.from_budget:
        strategy, budget = query.from_strategy, query.from_budget
        settings = PromptQuery(id=sent.id, strategy=strategy, budget=budget)
        title = _name_settings(query.from_strategy, query.from_budget)
        first = await _try_settings(call, session, sent, title, settings)
    settings = PromptQuery(
        id=sent.id,
        strategy=query.strategy or query.from_strategy,
        budget=query.budget,
        other=query.model is not None,
    )
    same = first.view.budget if first.view else query.from_budget
    title = _name_settings(query.strategy, query.budget, query.model)
    return [first, await _try_settings(call, session, sent, title, settings, budget=same, model=query.model)]


def _name_settings(strategy: str | None, budget: int | None, model: str | None = None) -> str:
    given = (strategy, f"{budget:,} tokens" if budget else None, model)
    return ", ".join(filter(None, given)) or "The same settings"


async def _try_settings(
    call: Call,
    session: Session,
    sent: PromptView,
    title: str,
    settings: PromptQuery,
    *,
    budget: int | None = None,
    model: str | None = None,
) -> Side:
    """Build the prompt that other settings give at the moment of a call. An error becomes part of the page.

    Args:
        call: the request.
        session: the session.
        sent: the prompt of the call.
        title: name of the settings.
        settings: the settings.
        budget: the budget, if the settings have none and the strategy has one; None: that of the call.
        model: the model; None: that of the call.
    """
    spec = STRATEGIES.get(settings.strategy or (sent.strategy or {}).get("strategy", ""))
    if not settings.budget and spec is not None and "budget" in spec.keys:
        settings = msgspec.structs.replace(settings, budget=budget or sent.budget)
    try:
        agent = sent.agent if sent.agent in call.hf.roster.agents else None
        responder = call.hf.find_responder(session, agent=agent, model=model or None)
        return Side(title, await view_prompt(call.hf.engine, session.ref, responder, settings))
    except HoldfastError as exc:
        return Side(title, None, exc.public_message)


def _get_free(view: PromptView) -> int:
    return sum(one.tokens for one in view.sections if one.name == "free")


# -- charts ------------------------------------------------------------------------


def make_bar(view: PromptView) -> list[Segment]:
    """Return the sections of a prompt, and what is left of its budget. Each links to the first message of its section."""
    firsts: dict[str, int] = {}
    for index, message in enumerate(view.messages):
        firsts.setdefault(message.section, index)
    return [
        Segment(*SECTIONS[one.name], one.tokens, f"#m-{firsts[one.name]}" if one.name in firsts else "")
        for one in view.sections
        if one.name not in FREE or one.name == "free"
    ]


def _make_strip(session: Session, view: PromptView) -> list[Segment]:
    """Return the log as ranges of messages with one decision each, which link to these messages."""
    strip = []
    for run in view.decisions[:_STRIP]:
        title = f"messages {run.first} to {run.last}: {describe_run(run)}"
        href = make_session_url(session, "prompt", call=view.id, log_after=run.first - 1) + "#log"
        strip.append(Segment(_DECISIONS.get(run.decision, "soft"), title, run.last - run.first + 1, href))
    last = view.decisions[-1].last if view.decisions else -1
    if (later := view.log_messages - last - 1) > 0 and strip:
        strip.append(Segment("headroom", "written later", later))
    return strip


def _sum_decisions(view: PromptView) -> list[Segment]:
    """Return the number of messages of each decision, as a legend of the strip."""
    counts: dict[str, int] = {}
    for run in view.decisions:
        counts[run.decision] = counts.get(run.decision, 0) + run.last - run.first + 1
    return [Segment(_DECISIONS.get(name, "soft"), name_decision(name), count) for name, count in counts.items()]


# -- messages ----------------------------------------------------------------------


def show_messages(view: PromptView) -> list[ShownMessage]:
    """Return the messages of a prompt as a page shows them."""
    changes = view.difference.changes if view.difference else ()
    kinds = {one.index: one.kind for one in changes if one.kind != "removed"}
    broken = view.broken.message if view.broken else -1
    return [ShownMessage(at, one, kinds.get(at, ""), at == broken) for at, one in enumerate(view.messages)]


def _list_removed(view: PromptView) -> list[PromptChange]:
    """Return the messages of the prompt before that are not in this one, in the order of the log."""
    changes = view.difference.changes if view.difference else ()
    return sorted((one for one in changes if one.kind == "removed"), key=lambda one: one.seqs)


def describe_message(message: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the text of a message in the format of Chat Completions, and its tool calls."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    text = "\n".join(str(part.get("text", f"[{part.get('type', 'part')}]")) for part in parts)
    functions = [one.get("function") or {} for one in message.get("tool_calls") or ()]
    return text, [f"{one.get('name', '?')}({decode_escapes(str(one.get('arguments', '')))})" for one in functions]


def split_text(mark: MessageMark) -> list[Piece]:
    """Divide the text of a message into the words that the prompt contains and all others."""
    if mark.state != "part":
        return [Piece(mark.text, mark.state == "whole")]
    spans: list[tuple[int, int]] = []
    for words in sorted({one.words for one in mark.excerpts if one.words}, key=len, reverse=True):
        pattern = r"\s+".join(map(re.escape, words.split()))
        spans += [found.span() for found in re.finditer(pattern, mark.text)]
    pieces, end = list[Piece](), 0
    for first, last in sorted(spans):
        if last > end:
            pieces += [Piece(mark.text[end:first], False), Piece(mark.text[max(first, end) : last], True)]
            end = last
    return [one for one in (*pieces, Piece(mark.text[end:], False)) if one.text]


def shorten_text(mark: MessageMark, limit: int = 320) -> list[Piece]:
    """Return about `limit` characters of a message: its beginning, and the words that the prompt contains."""
    shown, left = list[Piece](), limit
    for text, is_marked in split_text(mark):
        room = max(0, left) if is_marked or not shown else min(left, 60)
        if room <= 0:
            break
        shown.append(Piece(text if len(text) <= room else f"{text[: room - 1]}…", is_marked))
        left -= min(len(text), room)
    return shown


GLOBALS.update(
    sections=SECTIONS,
    shorten=shorten_text,
    strategies=list(STRATEGIES),
    page_size=INSPECTOR_MESSAGES,
    log_size=_LOG_SIZE,
    make_bar=make_bar,
    show_messages=show_messages,
    describe_message=describe_message,
)
