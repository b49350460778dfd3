"""`holdfast prompt`: the whole prompt of a model call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command import Call, Output, command, find_session, session_user_option
from holdfast.cli.errors import Failure
from holdfast.cli.explain import prompt_options
from holdfast.cli.prompt_bar import describe_prompt, draw_prompt, get_label, is_output_terminal
from holdfast.cli.session_text import format_message, format_role
from holdfast.cli.terminal import show_json
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.prompt_views import PromptMessage, PromptView


@command()
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
def prompt(
    call: Call,
    *,
    session_id: str,
    call_id: str,
    user: str | None,
    agent: str | None,
    model: str | None,
    **query: Any,
) -> Output:
    """Print the prompt of a model call, with all its messages.

    CALL is `12` for the last call of turn 12, `12.0` for its first one, or `next` for the prompt that would be sent now. `next` is
    the default.

    --strategy and --budget print the prompt that another strategy or budget would give. No model is called.
    """

    async def do(hf: Holdfast) -> PromptView:
        from holdfast.sessions.prompt_views import PromptQuery, view_prompt

        session = await find_session(hf, session_id, user)
        handle = hf.handle(session, agent=agent, model=model)
        wanted = PromptQuery(id=call_id, other=agent is not None or model is not None, **query)
        return await view_prompt(hf.engine, handle.ref, handle.responder, wanted)

    view = call.run(do, with_agents=True, index_read_only=True)
    notes = [view.not_rebuilt] if view.not_rebuilt else []
    notes = [f"This is not exactly the prompt that was sent: {note}." for note in (*notes, *view.differences)]
    if not call.as_json and not view.messages:
        raise Failure(f"the prompt {view.id} cannot be shown: {view.not_rebuilt or 'it has no messages'}")
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
