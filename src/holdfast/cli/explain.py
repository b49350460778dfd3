"""`holdfast explain`, `facts` and `prompt`: which messages and facts are in the prompt, and why, and the whole prompt."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command import Call, F, Note, Output, command, find_session, limit_option, session_user_option
from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.prompt_bar import (
    describe_prompt,
    draw_prompt,
    draw_sections,
    format_mark,
    format_marks_legend,
    get_label,
    is_output_terminal,
    read_prompt,
)
from holdfast.cli.session_text import format_message, format_role
from holdfast.cli.terminal import cut, sanitize, show_json
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.context.standing_facts import Fact
    from holdfast.domain.fact_choices import Choice
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.explanation import Explanation, RemedyKind
    from holdfast.sessions.prompt_sections import PromptMessage
    from holdfast.sessions.prompt_views import PromptView

strategy_option = click.option("--strategy", metavar="NAME", help="Strategy of the prompt.  [default: the session's]")
budget_option = click.option(
    "--budget", metavar="N", type=click.IntRange(1), help="Token budget of the conversation.  [default: the strategy's]"
)


def prompt_options(command: F) -> F:
    """Add the options that choose a prompt: `--agent`, `--model`, `--strategy` and `--budget`."""
    agent = click.option("--agent", metavar="NAME", help="Prompt of this agent.  [default: the session's agent]")
    model = click.option("--model", metavar="NAME", help="Prompt for this model.  [default: the agent's model]")
    return agent(model(strategy_option(budget_option(command))))


@command()
@click.argument("session_id", metavar="SESSION")
@click.option(
    "--seq", metavar="N", type=click.IntRange(0), help="Number of the message, as in `holdfast sessions show`."
)
@click.option("--text", metavar="TEXT", help="Text that the messages contain, instead of --seq.")
@click.option("--turn", metavar="N", type=click.IntRange(0), help="Prompt of this turn.  [default: the next turn]")
@click.option("--before", metavar="N", type=click.IntRange(0), help="With --text: only messages before this number.")
@limit_option("messages", most=50, default=10)
@prompt_options
@session_user_option
def explain(
    call: Call, *, session_id: str, user: str | None, agent: str | None, model: str | None, **query: Any
) -> Output:
    """Explain why messages are in the prompt, or are not.

    Shows the block of the prompt that contains them, or when they left the prompt and what would bring them back.

    With neither --seq nor --text, lists which messages are in the prompt, and why.

    --strategy and --budget show the prompt that another strategy or budget would give. No model is called.
    """
    from holdfast.sessions.explanation import iter_lines

    draws = is_output_terminal() and not call.as_json

    async def do(hf: Holdfast) -> tuple[Explanation, PromptView | None]:
        session = await find_session(hf, session_id, user)
        handle, turn = hf.handle(session, agent=agent, model=model), query["turn"]
        explanation = await handle.explain(**query)
        if not draws:
            return explanation, None
        call_id = "next" if turn is None else str(turn)
        return explanation, await read_prompt(handle, call_id, strategy=query["strategy"], budget=query["budget"])

    explanation, view = call.run(do, with_agents=True, index_read_only=True)
    lines = [*iter_lines(explanation, _make_commands(call, session_id, user))]
    text: list[Any] = [sanitize("\n".join(line for _, line in lines))]
    if draws:
        text = []
        _draw(lines, view)
    if query["text"] is not None and not explanation.messages:
        text.append(Note("No message contains that text."))
    return Output(explanation, text)


def _draw(lines: Sequence[tuple[str, str]], view: PromptView | None) -> None:
    """Print an explanation with the bar of the prompt, and a mark before each message or range of messages."""
    if view is not None:
        draw_sections(view)
    click.echo(f"\n{format_marks_legend()}\n")
    for state, line in lines:
        click.echo(f"{format_mark(state)} {sanitize(line.removeprefix('  '))}" if state else sanitize(line))


def _make_commands(call: Call, session_id: str, user: str | None) -> Mapping[RemedyKind, str]:
    """Return the command for each kind of remedy that brings a message back into prompts. The caller appends the number of the message."""
    # The URL of a server may contain a password.
    store = call.store if call.store is None or call.store.startswith("sqlite:") else "URL"
    options = [("--user", user), ("--store", store), ("--config", call.config)]
    given = [part for name, value in options if value is not None for part in (name, value)]
    kinds: dict[RemedyKind, Sequence[str]] = {"pin": ["--pin"], "send": ["--lift", "all"]}
    start = ["holdfast", "sessions", "annotate"]
    return {kind: shlex.join([*start, *flags, *given, session_id]) for kind, flags in kinds.items()}


# -- facts -----------------------------------------------------------------------

_SHOWN = 100
"""Maximum characters of a fact's text in the table."""


@command()
@click.argument("session_id", metavar="SESSION")
@click.option("--pin", metavar="ID", multiple=True, help="Keep this fact in the prompt, before all others.")
@click.option("--drop", metavar="ID", multiple=True, help="Leave this fact out of the prompt's facts.")
@click.option("--reset", metavar="ID", multiple=True, help="Undo --pin or --drop.")
@limit_option("facts", most=1000, default=50)
@click.option("--after", metavar="ID", help="Only facts after this one, for the next page.")
@strategy_option
@budget_option
@session_user_option
def facts(
    call: Call,
    *,
    session_id: str,
    user: str | None,
    pin: tuple[str, ...],
    drop: tuple[str, ...],
    reset: tuple[str, ...],
    limit: int,
    after: str | None,
    strategy: str | None,
    budget: int | None,
) -> Output:
    """List, pin and drop the facts that a user stated, in the order in which they were said.

    Shows which facts are in the prompt. --pin, --drop and --reset take effect before the list is made, and the facts that they
    change are always listed.
    """
    wanted: list[tuple[tuple[str, ...], Mapping[Choice, bool]]] = [
        (pin, {"pinned": True}),
        (drop, {"dropped": True}),
        (reset, {"pinned": False, "dropped": False}),
    ]
    options: dict[str, Any] = {"budget": budget} if budget is not None else {}

    async def do(hf: Holdfast) -> list[Fact]:
        from holdfast.sessions.facts import choose

        session = await find_session(hf, session_id, user)
        for ids, change in wanted:
            for fact_id in ids:
                await choose(hf.store, session.ref, fact_id, change)
        return await hf.handle(session).facts(strategy, **options)

    found = call.run(do, with_agents=True, writes=bool(pin or drop or reset))
    start = _find_start(found, after)
    end, changed = start + limit, {*pin, *drop, *reset}
    listed = [one for at, one in enumerate(found) if start <= at < end or one.id in changed]
    notes = []
    if more := [one for one in found[end:] if one.id not in changed]:
        kept = f"{sum(one.in_prompt for one in more):,} of them in the prompt"
        hint = f"show them with --after {found[end - 1].id}, or more at once with --limit"
        notes.append(f"{format_count(len(more), 'more fact')}, {kept}: {hint}.")
    return _list_facts(session_id, listed, notes, is_first=after is None)


def _list_facts(session_id: str, listed: Sequence[Fact], notes: Sequence[str], *, is_first: bool) -> Output:
    from holdfast.sessions.facts import FactObject

    rows = [
        {
            "id": one.id,
            "in prompt": one.source or "",
            "choice": "pinned" if one.pinned else "dropped" if one.dropped else "",
            "corrected by": one.corrected_by or "",
            "text": cut(one.text, _SHOWN),
        }
        for one in listed
    ]
    none = Note("This session has no facts." if is_first else "There are no more facts.")
    return Output([FactObject.from_fact(session_id, one) for one in listed], [rows] if rows else [none], notes)


def _find_start(found: Sequence[Fact], after: str | None) -> int:
    """Return the index of the first fact to list. Raise `Misuse` if there is no fact `after`."""
    ids = [one.id for one in found]
    if after is not None and after not in ids:
        raise Misuse(f"the session has no fact {after!r}: give --after an id of the list")
    return 0 if after is None else ids.index(after) + 1


# -- prompt --------------------------------------------------------------------


@command()
@click.argument("session_id", metavar="SESSION")
@click.argument("call_id", metavar="[CALL]", default="next")
@click.option(
    "--format",
    "dialect",
    type=click.Choice(("openai", "anthropic", "gemini")),
    help="Print the request in the format of this provider, as JSON.",
)
@prompt_options
@session_user_option
def prompt(
    call: Call, *, session_id: str, call_id: str, user: str | None, agent: str | None, model: str | None, **query: Any
) -> Output:
    """Print the prompt of a model call, with all its messages.

    CALL is `12` for the last call of turn 12, `12.0` for its first one, or `next` for the prompt that would be sent now. `next` is
    the default.

    --strategy and --budget print the prompt that another strategy or budget would give. No model is called.
    """

    async def do(hf: Holdfast) -> PromptView:
        session = await find_session(hf, session_id, user)
        return await hf.handle(session, agent=agent, model=model).prompt(call_id, **query)

    view = call.run(do, with_agents=True, index_read_only=True)
    notes = [f"This is not exactly the prompt that was sent: {note}." for note in view.differences]
    if not call.as_json and not view.messages:
        raise Failure(f"the prompt {view.id} cannot be shown: {view.not_recorded or 'it has no messages'}")
    if not call.as_json and query["dialect"] is not None:
        show_json(view.request)
        return Output(None, (), notes)
    return Output(view, _format_prompt(view), notes)


def _format_prompt(view: PromptView) -> Iterator[str]:
    """Yield the lines that show a prompt and its messages. Draw the prompt if standard output is a terminal."""
    from holdfast.wire.openai import parse_message

    if is_output_terminal():
        draw_prompt(view)
    else:
        yield ": ".join(describe_prompt(view))
    tools: dict[str, str] = {}
    for one in view.messages:
        message = parse_message(one.message)
        yield ""
        yield f"{format_role(message.role)}  {_describe_message(one)}"
        yield from format_message(message, full=True, tools=tools)


def _describe_message(message: PromptMessage) -> str:
    """Return the section of a message, the numbers of the log's messages in it, and its tokens."""
    numbers: list[str] = []
    if message.seqs:
        first, last = message.seqs[0], message.seqs[-1]
        numbers = [f"message {first}" if first == last else f"messages {first} to {last}"]
    shortened = ["not word for word"] if message.kind == "entry" and not message.verbatim else []
    return ", ".join([get_label(message.section), *numbers, *shortened, format_count(message.tokens, "token")])
