"""The prompt view: what a model saw in one call, what it did not see, and what other settings would give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

from holdfast.context.settings import STRATEGIES
from holdfast.domain.objects import Count, json_schema
from holdfast.domain.session import Session
from holdfast.errors import HoldfastError
from holdfast.server.http import Call
from holdfast.server.inspector.frame import GLOBALS, Segment, Values, make_session_url
from holdfast.server.inspector.session import SESSION, SessionPageQuery, SessionPages
from holdfast.server.limits import INSPECTOR_MESSAGES
from holdfast.sessions.message_explanations import decode_escapes
from holdfast.sessions.model_calls import CallId, list_calls, parse_call_id
from holdfast.sessions.prompt_sections import FREE, PromptChange, PromptMessage
from holdfast.sessions.prompt_views import NEXT, PromptView

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

    @property
    def compares(self) -> bool:
        """True if other settings are wanted."""
        return any((self.strategy, self.budget, self.model))


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
    log_limit = 0 if query.compares else _LOG_SIZE
    view = await handle.prompt(call_id, dialect=query.shape, log_after=query.log_after, log_limit=log_limit)
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
    """Return the prompt of a call, and the one that other settings give at that moment. An error becomes part of the page."""
    first = Side("As it was sent" if sent.call else "With the present settings", sent)
    given = (query.strategy, f"{query.budget:,} tokens" if query.budget else None, query.model)
    title, budget = ", ".join(filter(None, given)), query.budget
    spec = STRATEGIES.get(query.strategy or (sent.strategy or {}).get("strategy", ""))
    if not budget and spec is not None and "budget" in spec.keys:
        budget = sent.budget
    agent = sent.agent if query.model and sent.agent in call.hf.roster.agents else None
    try:
        handle = call.hf.handle(session, agent=agent, model=query.model or None)
        return [first, Side(title, await handle.prompt(sent.id, strategy=query.strategy or None, budget=budget))]
    except HoldfastError as exc:
        return [first, Side(title, None, exc.public_message)]


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
        title = f"messages {run.first} to {run.last}: {run.why}"
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
    return [Segment(_DECISIONS.get(name, "soft"), name, count) for name, count in counts.items()]


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


GLOBALS.update(
    sections=SECTIONS,
    strategies=list(STRATEGIES),
    page_size=INSPECTOR_MESSAGES,
    log_size=_LOG_SIZE,
    make_bar=make_bar,
    show_messages=show_messages,
    describe_message=describe_message,
)
