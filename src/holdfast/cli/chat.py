"""`holdfast chat`: open the store and find the session. `repl` runs the chat."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from holdfast.cli.command import CONFIG, STORE, Call, command, create_folder, find_session
from holdfast.cli.terminal import format_line
from holdfast.errors import SessionNotFound

if TYPE_CHECKING:
    from holdfast.config.llms import LLMSettings
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.handle import SessionHandle


@command(shared=(STORE, CONFIG))
@click.option(
    "--session", "session_id", metavar="ID", help="Continue this session. It is created if it does not exist."
)
@click.option("--user", metavar="ID", help="User who chats.  [default: the user of the session, else `default`]")
@click.option("--agent", metavar="NAME", help="Agent that answers.  [default: the session's own agent]")
@click.option("--model", metavar="NAME", help="Model that answers: an llm of the configuration, or a model name.")
def chat(call: Call, *, session_id: str | None, user: str | None, agent: str | None, model: str | None) -> None:
    """Chat with a model that remembers, in the terminal.

    After each reply, chat shows how full the budget is and which messages left the prompt. /help lists the commands. If
    standard input is not a terminal, each line of it is a message. Ctrl-C stops a reply; at the prompt it ends the chat, as Ctrl-D does.
    """
    import asyncio

    from holdfast.cli.repl import Chat
    from holdfast.config.build import build_life_settings, create_holdfast
    from holdfast.config.resolve import resolve_llm

    config = call.load_settings(model=model)
    create_folder(config.store)
    # No sweep: a chat ends other sessions only if its new session exceeds `max_sessions`.
    hf = create_holdfast(config, life=build_life_settings(config))
    with asyncio.Runner() as runner:  # the event loop runs only while there is work, not while the user types
        try:
            runner.run(hf.__aenter__())
            handle = runner.run(_find_session(hf, session_id, user=user, agent=agent, model=model))
            _warn_about_gateway(resolve_llm(config, model or handle.responder.agent_name))
            code = Chat(runner, hf, handle).run()
        finally:
            runner.run(hf.close())
    raise click.exceptions.Exit(code)


async def _find_session(
    hf: Holdfast, session_id: str | None, *, user: str | None, agent: str | None, model: str | None
) -> SessionHandle:
    """Return the session with an id. If it does not exist, create it.

    If no user is given, the session may belong to any user, and a new one belongs to the default user. If no id is given, create a session
    with a random id.
    """
    from holdfast.domain.session import DEFAULT_USER

    if session_id is not None and user is None:
        with suppress(SessionNotFound):
            return hf.handle(await find_session(hf, session_id, None), agent=agent, model=model)
    session = await hf.ensure(session_id, user_id=user or DEFAULT_USER, agent=agent)
    return hf.handle(session, agent=agent, model=model)


def _warn_about_gateway(llm: LLMSettings) -> None:
    """Warn if the model's address belongs to a Holdfast server, because that server would store the conversation a second time.

    This happens in a shell that is set up for a client: its variables `OPENAI_BASE_URL` and `ANTHROPIC_BASE_URL` name a Holdfast server.
    """
    from holdfast.cli.doctor.upstream import is_holdfast_server
    from holdfast.sections import mask_url

    if not is_holdfast_server(llm.base_url):
        return
    variable = f"{'ANTHROPIC' if llm.provider == 'anthropic' else 'OPENAI'}_BASE_URL"
    change = (
        f"unset {variable}, or set it"
        if llm.origin == "environment"
        else f"set base_url ({llm.origin}), or {variable},"
    )
    stored = "the conversation is stored there too, as another session"
    click.echo(
        f"Warning: {format_line(mask_url(llm.base_url))} is a Holdfast server: {stored}. To store it once, {change} to the"
        " address of the model.",
        err=True,
    )
