"""`holdfast prompt`: the whole prompt of a model call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from holdfast.cli.errors import Failure
from holdfast.cli.explain import prompt_options
from holdfast.cli.prompt_bar import describe_prompt, draw_prompt, get_label, is_output_terminal
from holdfast.cli.session_text import format_message, format_role
from holdfast.cli.stores import find_session, json_option, run_with_store, session_user_option, store_options
from holdfast.cli.terminal import show_json
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.context.dialects import Dialect
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.prompt_views import PromptMessage, PromptView


@click.command
@click.argument("session_id", metavar="SESSION")
@click.argument("call_id", metavar="[CALL]", default="next")
@click.option(
    "--format",
    "dialect",
    type=click.Choice(("openai", "anthropic", "gemini")),
    help="Print the request in the format of this provider, as JSON.",
)
@click.option(
    "--rebuild", is_flag=True, help="Rebuild the prompt of a very long session too, by reading its whole log."
)
@prompt_options
@session_user_option
@store_options
@json_option
def prompt(
    session_id: str,
    call_id: str,
    user: str | None,
    store: str | None,
    config: str | None,
    *,
    dialect: Dialect | None,
    rebuild: bool,
    agent: str | None,
    model: str | None,
    strategy: str | None,
    budget: int | None,
    as_json: bool,
) -> None:
    """Print the prompt of a model call, with all its messages.

    CALL is `12` for the last call of turn 12, `12.0` for its first one, or `next` for the prompt that would be sent now. `next` is
    the default.

    --strategy and --budget print the prompt that another strategy or budget would give. No model is called.
    """

    async def do(hf: Holdfast) -> PromptView:
        from holdfast.sessions.prompt_views import PromptQuery, view_prompt

        session = await find_session(hf, session_id, user)
        handle = hf.handle(session, agent=agent, model=model)
        query = PromptQuery(
            id=call_id,
            strategy=strategy,
            budget=budget,
            other=agent is not None or model is not None,
            dialect=dialect,
            rebuild=rebuild,
        )
        return await view_prompt(hf.engine, handle.ref, handle.responder, query)

    view = run_with_store(do, store=store, config=config, with_agents=True, index_read_only=True)
    if as_json:
        show_json(view)
    elif not view.messages:
        raise Failure(f"the prompt {view.id} cannot be shown: {view.not_rebuilt or 'it has no messages'}")
    elif dialect is not None:
        show_json(view.request)
    else:
        if is_output_terminal():
            draw_prompt(view)
        else:
            click.echo(": ".join(describe_prompt(view)))
        for line in _format_prompt(view):
            click.echo(line)
    for note in (*([view.not_rebuilt] if view.not_rebuilt else ()), *view.differences):
        click.echo(f"This is not exactly the prompt that was sent: {note}.", err=True)


def _format_prompt(view: PromptView) -> Iterator[str]:
    """Yield the lines that show the messages of a prompt."""
    from holdfast.wire.openai import parse_message

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
