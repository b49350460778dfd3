"""Draw a prompt on a terminal: a stacked bar of its sections, and a mark for each message of the log.

Letters in the bar name the sections, so it is legible without colour. Terminals without Unicode get ASCII characters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from holdfast.cli.terminal import WIDTH, can_print, format_line
from holdfast.errors import HoldfastError
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from holdfast.context.presence import Excerpt, State
    from holdfast.domain.session import Entry, Session
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.handle import SessionHandle
    from holdfast.sessions.prompt_sections import PromptSection
    from holdfast.sessions.prompt_views import PromptView


class _Style(NamedTuple):
    letter: str
    label: str
    style: str
    """Colours of the section in the bar. They are among the 16 that every terminal adapts to its background."""


_SECTIONS: Final[Mapping[str, _Style]] = {
    "system": _Style("S", "system", "bright_white on blue"),
    "tools": _Style("O", "tools", "black on bright_blue"),
    "introduction": _Style("I", "introduction", "black on magenta"),
    "task": _Style("T", "task", "black on green"),
    "facts": _Style("F", "standing facts", "black on white"),
    "summary": _Style("M", "summary", "black on yellow"),
    "digest": _Style("D", "digest", "black on yellow"),
    "pins": _Style("P", "pinned", "black on bright_red"),
    "head": _Style("H", "chosen", "black on bright_magenta"),
    "tail": _Style("N", "newest", "black on cyan"),
    "recalled": _Style("R", "recalled", "black on bright_blue"),
    "current": _Style("C", "current", "black on bright_green"),
    "added": _Style("A", "added by Holdfast", "black on bright_white"),
    "free": _Style(".", "free", "dim"),
    "unused": _Style("_", "not used by the strategy", "dim"),
    "tool_results": _Style("t", "reserve for tool results", "dim"),
    "safety": _Style("s", "safety reserve", "dim"),
    "reply": _Style("r", "reply reserve", "dim"),
}
_UNKNOWN: Final = _Style("?", "", "black on white")
_MARKS: Final[Mapping[str, tuple[str, str, str, dict[str, Any]]]] = {
    "whole": ("●", "#", "in the prompt", {"fg": "green"}),
    "part": ("◐", "+", "in part", {"fg": "yellow"}),
    "no": ("○", "-", "not in the prompt", {"fg": "red"}),
    "later": ("·", ".", "written later", {"dim": True}),
}
"""For each state of a message: its mark, its mark in ASCII, the words for it, and the style."""
_SYMBOLS: Final = "".join(symbol for symbol, *_ in _MARKS.values())
LEAST_ADDED: Final = 10
"""Tokens that Holdfast adds for the format, up to which they are left out of the bar."""
SHOWN_EXCERPTS: Final = 3
"""Maximum number of excerpts of a message that are shown."""
_EXCERPT_CHARACTERS: Final = 60


async def read_prompt(handle: SessionHandle, call_id: str, **query: Any) -> PromptView | None:
    """Return a prompt to draw. Return None if it is not known, for example because the configuration does not have the agent."""
    try:
        return await handle.prompt(call_id, **query)
    except HoldfastError:
        return None


async def read_last_prompt(hf: Holdfast, session: Session, entries: Sequence[Entry]) -> PromptView | None:
    """Return the last prompt that was sent or, if its sections are not known, the next one, with marks for `entries`."""
    from holdfast.limits import PROMPT_LOG

    marked = entries[-PROMPT_LOG:]
    log: dict[str, Any] = {"log_after": marked[0].seq - 1, "log_limit": PROMPT_LOG} if marked else {}
    try:
        handle = hf.handle(session)
    except HoldfastError:  # the configuration does not have the session's agent
        return None
    for name in (*(str(call.turn_id) for call in await hf.store.calls(session.ref, limit=1)), "next"):
        view = await read_prompt(handle, name, **log)
        if view is not None and view.total_tokens:  # a record of a call without usage does not know the size
            return view
    return None


def is_output_terminal() -> bool:
    """Return True if standard output is a terminal. Pipes and files get text without drawings."""
    return sys.stdout.isatty()


def make_console() -> Console:
    """Return the console for drawings. It has at most `WIDTH` columns."""
    from rich.console import Console

    console = Console(highlight=False)
    console.width = min(console.width, WIDTH)
    return console


# -- marks -------------------------------------------------------------------------


def format_mark(state: str) -> str:
    """Return the mark of messages that a prompt contains whole, in part or not (`no`), or that are `later` than the prompt."""
    symbol, plain, _, style = _MARKS[state]
    return click.style(symbol if can_print(_SYMBOLS) else plain, **style)


def mark_message(state: State, decision: str) -> str:
    """Return the mark of a message whose presence in the prompt is known."""
    return format_mark("later" if decision == "later" else state)


def format_marks_legend() -> str:
    """Return a line that explains the marks."""
    return "  ".join(f"{format_mark(state)} {words}" for state, (_, _, words, _) in _MARKS.items())


def format_excerpts(excerpts: Sequence[Excerpt]) -> str:
    """Return one line with the words of a message that the prompt contains."""
    limit = _EXCERPT_CHARACTERS
    shown = [
        f'{one.block} "{format_line(one.words[: 4 * limit], limit)}"' if one.words else one.block
        for one in excerpts[:SHOWN_EXCERPTS]
    ]
    more = len(excerpts) - len(shown)
    return f"in {'; '.join(shown)}{f'; {more} more' if more > 0 else ''}"


# -- the bar -----------------------------------------------------------------------


def describe_prompt(view: PromptView) -> tuple[str, str]:
    """Return two texts: which prompt it is; and its size, its strategy and its model."""
    call = view.call
    if call is None:
        which = "the next prompt"
    elif call.number == view.turn_calls - 1:
        which = f"the last prompt of turn {call.turn_id}"
    else:
        which = f"the prompt of call {view.id}"
    strategy = format_line(str(view.strategy["strategy"]), 60) if view.strategy else "unknown strategy"
    window = f" of {view.window:,} tokens ({view.total_tokens / view.window:.1%})" if view.window else " tokens"
    return which, f"{view.total_tokens:,}{window}, {strategy}, {format_line(view.model, 60)}"


def draw_prompt(view: PromptView) -> None:
    """Print a prompt: which one, its bar, and the tokens of its sections."""
    from rich.text import Text

    console, call = make_console(), view.call
    which, size = describe_prompt(view)
    console.print(Text.assemble((which, "bold"), f": {size}"))
    if call is not None and call.prompt_tokens:
        cached = f"{call.cached_tokens:,} ({call.cached_tokens / call.prompt_tokens:.0%}) from its cache"
        console.print(f"the provider counted {call.prompt_tokens:,} tokens, {cached}", style="dim")
    draw_sections(view)


def draw_sections(view: PromptView) -> None:
    """Print the bar of a prompt, and the tokens of its sections."""
    console = make_console()
    sections = [one for one in view.sections if one.name != "added" or one.tokens >= LEAST_ADDED]
    if sections:
        console.print(draw_bar(sections, console))
        for line in _draw_legend(sections, console):
            console.print(line)


def draw_bar(sections: Sequence[PromptSection], console: Console) -> Text:
    """Draw the sections of a prompt as one bar of the console's width. What stays free is only in the legend."""
    from rich.text import Text

    from holdfast.sessions.prompt_sections import FREE

    sent = [one for one in sections if one.name not in FREE]
    is_plain = console.color_system is None or console.no_color
    fill = " " if not is_plain else "▒" if can_print("▒") else "="
    bar = Text.assemble(("[", "dim"), no_wrap=True)
    for section, cells in zip(sent, _divide([one.tokens for one in sent], console.width - 2), strict=True):
        style = _SECTIONS.get(section.name, _UNKNOWN)
        bar.append(style.letter + fill * (cells - 1), style=style.style)
    return bar.append("]", style="dim")


def _divide(tokens: Sequence[int], width: int) -> list[int]:
    """Divide `width` cells in proportion to `tokens`, at least one cell for each."""
    spare = max(0, width - len(tokens))
    total = sum(tokens) or 1
    shares = [spare * size / total for size in tokens]
    cells = [1 + int(share) for share in shares]
    by_remainder = sorted(range(len(tokens)), key=lambda at: int(shares[at]) - shares[at])
    for at in by_remainder[: max(0, width - sum(cells))]:
        cells[at] += 1
    return cells


def get_label(section: str) -> str:
    """Return the words for a section of the prompt."""
    return _SECTIONS.get(section, _UNKNOWN).label or section


def _draw_legend(sections: Sequence[PromptSection], console: Console) -> Iterator[Text]:
    """Yield lines with the letter, name and tokens of each section, as many to a line as fit."""
    from rich.text import Text

    line = Text()
    for section in sections:
        style = _SECTIONS.get(section.name, _UNKNOWN)
        of = f" in {format_count(section.messages, 'message')}" if section.messages > 1 else ""
        item = Text.assemble((style.letter, style.style), f" {get_label(section.name)} {section.tokens:,}{of}")
        if line and line.cell_len + item.cell_len + 3 > console.width:
            yield line
            line = Text()
        line = line.append("   " if line else "").append_text(item)
    yield line
