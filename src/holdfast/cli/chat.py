"""`holdfast chat`."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Coroutine
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.command import CONFIG, STORE, Call, command, create_folder, find_session
from holdfast.cli.errors import FAILED
from holdfast.cli.terminal import format_line, is_interactive
from holdfast.errors import HoldfastError, ModelError, SessionNotFound
from holdfast.numbers import format_count

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from holdfast.cli.repl import ChatSession
    from holdfast.config import ServerSettings
    from holdfast.config.llms import LLMSettings
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.handle import SessionHandle

T = TypeVar("T")
PROMPT = "you> "


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
    from holdfast.config import resolve_llm

    settings = call.load_settings(model=model)
    with _open(settings) as (runner, hf):
        handle = runner.run(_find_session(hf, session_id, user=user, agent=agent, model=model))
        _warn_about_gateway(resolve_llm(settings.config, model or handle.responder.agent_name))
        raise click.exceptions.Exit(Chat(runner, hf, handle).run())


@contextmanager
def _open(settings: ServerSettings) -> Iterator[tuple[asyncio.Runner, Holdfast]]:
    """Open the store and an event loop for the duration of the block.

    The event loop runs only while there is work, not while the user types.
    """
    import asyncio

    from holdfast.config.build import build_life_settings, create_holdfast

    create_folder(settings.store)
    # No sweep: a chat ends other sessions only if its new session exceeds `max_sessions`.
    hf = create_holdfast(settings, life=build_life_settings(settings.config))
    with asyncio.Runner() as runner:
        try:
            runner.run(hf.__aenter__())
            yield runner, hf
        finally:
            runner.run(hf.close())


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
    remedy = (
        f"unset {variable}, or set it to"
        if llm.origin == "environment"
        else f"set base_url ({llm.origin}), or {variable}, to"
    )
    click.echo(
        f"Warning: {format_line(mask_url(llm.base_url))} is a Holdfast server: the conversation is stored there too, as"
        f" another session. To store it once, {remedy} the address of the model.",
        err=True,
    )


class Chat:
    """The input loop of a chat, which reads lines and runs each line as a command or a turn."""

    def __init__(self, runner: asyncio.Runner, hf: Holdfast, handle: SessionHandle) -> None:
        from holdfast.cli.repl import BudgetGauge, ChatSession

        self._runner = runner
        self._session: ChatSession = ChatSession(hf, handle)
        self._gauge = BudgetGauge()
        self._failed = False

    def run(self) -> int:
        """Run until the input or the chat ends, and return the exit code."""
        self._greet()
        next_line = _make_reader()
        while (text := next_line()) is not None:
            if text.strip() and not self._handle(text.strip()):
                break
        # A script needs the exit code; a user at a terminal has seen the error.
        return FAILED if self._failed and not _is_interactive() else 0

    def _greet(self) -> None:
        chat_session = self._session
        session = self._run(chat_session.handle.info())
        llm = chat_session.handle.responder.llm
        model = (
            "the built-in offline model, no language model"
            if llm.model == "offline"
            else f"model {format_line(llm.model, 60)}"
        )
        size = f", {format_count(session.messages, 'message')} so far" if session.messages else ", new"
        click.echo(f"session {format_line(session.id)} of user {format_line(session.user_id)}{size}; {model}")
        if _is_interactive():
            click.echo("/help lists the commands.")

    def _handle(self, text: str) -> bool:
        """Run a line of input as a command or a turn. Return False if the line ends the chat."""
        from holdfast.cli.repl import BudgetGauge, parse_command

        command = parse_command(text)
        if command is None:
            self._say(text.removeprefix("/") if text.startswith("//") else text)
            return True
        name, rest = command
        if name == "quit":
            return False
        try:
            before = self._session.handle.ref
            for text_line in self._run(self._session.run_command(name, rest)):
                click.echo(text_line)
            if self._session.handle.ref != before:
                self._gauge = BudgetGauge()
                self._greet()
        except HoldfastError as exc:
            self._report_error(exc)
        return True

    def _say(self, text: str) -> None:
        """Run one turn with a message of the user, and show how full the budget is."""
        try:
            self._run(self._session.say(text))
        except KeyboardInterrupt:
            click.echo("(stopped; the part that arrived is saved)")
        except HoldfastError as exc:
            self._report_error(exc)
            return
        if self._session.working_set is not None:
            click.echo(click.style(self._gauge.read(self._session.working_set), dim=True))

    def _report_error(self, error: HoldfastError) -> None:
        self._failed = True
        kept = " (your message is saved; send it again to retry)" if isinstance(error, ModelError) else ""
        click.echo(f"Error: {format_line(str(error))}{kept}", err=True)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)


# -- lines ---------------------------------------------------------------------


def _is_interactive() -> bool:
    """Return True if standard input and output are both terminals."""
    return is_interactive() and sys.stdout.isatty()


def _make_reader() -> Callable[[], str | None]:
    """Return a function that reads the next line of input, and returns None at the end of the input."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if not _is_interactive():
        return lambda: sys.stdin.readline() or None
    try:
        import readline as _  # noqa: F401  # with it, `input` can be edited and has a history
    except ImportError:
        pass
    return _ask


def _ask() -> str | None:
    try:
        return input(PROMPT)
    except EOFError:
        click.echo()  # the prompt's line is still open
        return None
    except KeyboardInterrupt:
        click.echo()
        raise
