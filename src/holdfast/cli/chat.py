"""`holdfast chat`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.errors import FAILED
from holdfast.cli.stores import found, place_options, user_option
from holdfast.cli.terminal import attended, counted, line
from holdfast.errors import HoldfastError, ModelError, SessionNotFound

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from holdfast.cli.repl import Talk
    from holdfast.config import ServerSettings
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.handle import SessionHandle

T = TypeVar("T")
PROMPT = "you> "


@click.command
@click.option("--session", "session_id", metavar="ID", help="Go on with this session; it is made if there is none.")
@user_option
@click.option("--agent", metavar="NAME", help="Who answers.  [default: the session's own agent]")
@click.option("--model", metavar="NAME", help="The model that answers: an llm of the configuration, or a model's name.")
@place_options
@click.pass_context
def chat(
    ctx: click.Context,
    /,
    session_id: str | None,
    user: str | None,
    *,
    agent: str | None,
    model: str | None,
    **place: Any,
) -> None:
    """Talk with a model that remembers: in the terminal, over the same turns as the server's.

    After each reply it shows how full the budget is, and what left it. /help lists the commands. Without a terminal each
    line of the standard input is a message. Ctrl-C stops a reply; where it is your turn, it ends the chat, as Ctrl-D does.
    """
    from holdfast.config import load_settings

    settings = load_settings({**place, "model": model}, os.environ)
    with _opened(settings) as (runner, hf):
        handle = runner.run(_session(hf, session_id, user=user, agent=agent, model=model))
        ctx.exit(Chat(runner, hf, handle).run())


@contextmanager
def _opened(settings: ServerSettings) -> Iterator[tuple[asyncio.Runner, Holdfast]]:
    """An event loop that runs while something is done, and not while somebody thinks; and the open store."""
    import asyncio

    from holdfast.config.build import build_life_settings, create_holdfast, create_store_folder

    create_store_folder(settings.store)
    # Whoever talks here ends nobody else's sessions.
    hf = create_holdfast(settings, life=build_life_settings(settings.config))
    with asyncio.Runner() as runner:
        try:
            runner.run(hf.__aenter__())
            yield runner, hf
        finally:
            runner.run(hf.close())


async def _session(
    hf: Holdfast, session_id: str | None, *, user: str | None, agent: str | None, model: str | None
) -> SessionHandle:
    """The session that is meant: the user's, else the only one of that id, else a new one."""
    from holdfast.domain.session import DEFAULT_USER

    if session_id is not None and user is None:
        with suppress(SessionNotFound):
            return hf.handle(await found(hf, session_id, None), agent=agent, model=model)
    session = await hf.ensure(session_id, user_id=user or DEFAULT_USER, agent=agent)
    return hf.handle(session, agent=agent, model=model)


class Chat:
    """The loop: a line of the user's, a command or a message, and what comes of it."""

    def __init__(self, runner: asyncio.Runner, hf: Holdfast, handle: SessionHandle) -> None:
        from holdfast.cli.repl import Gauge, Talk

        self._runner = runner
        self._talk: Talk = Talk(hf, handle)
        self._gauge = Gauge()
        self._failed = False

    def run(self) -> int:
        """Talk until the lines end; the exit code."""
        self._greet()
        next_line = _lines()
        while (text := next_line()) is not None:
            if text.strip() and not self._took(text.strip()):
                break
        # A script wants to know; whoever sat there has seen it.
        return FAILED if self._failed and not _attended() else 0

    def _greet(self) -> None:
        talk = self._talk
        session = self._do(talk.handle.info())
        llm = talk.handle.voice.llm
        model = (
            "the built-in offline model, no language model"
            if llm.model == "offline"
            else f"model {line(llm.model, 60)}"
        )
        stands = f", {counted(session.messages, 'message')} so far" if session.messages else ", new"
        click.echo(f"session {line(session.id)} of user {line(session.user_id)}{stands}; {model}")
        if _attended():
            click.echo("/help lists the commands.")

    def _took(self, text: str) -> bool:
        """Do what a line says; False when it says to end."""
        from holdfast.cli.repl import Gauge, command_in

        command = command_in(text)
        if command is None:
            self._say(text.removeprefix("/") if text.startswith("//") else text)
            return True
        name, rest = command
        if name == "quit":
            return False
        try:
            before = self._talk.handle.ref
            for told in self._do(self._talk.command(name, rest)):
                click.echo(told)
            if self._talk.handle.ref != before:
                self._gauge = Gauge()
                self._greet()
        except HoldfastError as exc:
            self._complain(exc)
        return True

    def _say(self, text: str) -> None:
        """One turn."""
        try:
            self._do(self._talk.say(text))
        except KeyboardInterrupt:
            click.echo("(stopped; what arrived is kept)")
        except HoldfastError as exc:
            self._complain(exc)
            return
        if self._talk.working_set is not None:
            click.echo(click.style(self._gauge.read(self._talk.working_set), dim=True))

    def _complain(self, error: HoldfastError) -> None:
        self._failed = True
        kept = " (your message is kept: say it again to try again)" if isinstance(error, ModelError) else ""
        click.echo(f"Error: {line(str(error))}{kept}", err=True)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)


# -- lines ---------------------------------------------------------------------


def _attended() -> bool:
    """Whether somebody sits there who types, and reads."""
    return attended() and sys.stdout.isatty()


def _lines() -> Callable[[], str | None]:
    """Gives the next line each time it is called; None at the end."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if not _attended():
        return lambda: sys.stdin.readline() or None
    try:
        import readline as _  # noqa: F401  # with it, `input` can be edited and has a history
    except ImportError:
        pass
    return _asked


def _asked() -> str | None:
    try:
        return input(PROMPT)
    except EOFError:
        click.echo()  # the prompt's line is still open
        return None
    except KeyboardInterrupt:
        click.echo()
        raise
