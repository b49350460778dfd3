"""The outermost command: what was raised inside becomes one clear line and an exit code."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import click

from holdfast.cli.terminal import plain
from holdfast.errors import ConfigError, HoldfastError, InvalidMessage, InvalidRequest, TooLarge

FAILED, USAGE, QUIT = 1, 2, 130
"""Exit codes: the work failed, the command was wrong, interrupted."""


class Failure(click.ClickException):
    """The work failed: `message`, what happened and what to do about it, goes to stderr without a traceback."""

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(plain(message))


class Misuse(Failure):
    """The command was wrong."""

    exit_code = USAGE


class Mistakes(Misuse):
    """Lines that each begin with their own place: they are shown as they are."""

    def show(self, file: Any = None) -> None:
        click.echo(self.message, file=file, err=file is None)


class Frame(click.Group):
    """The root group."""

    def __init__(self, *, name: str, version: str, help: str, commands: Sequence[click.Command]) -> None:  # noqa: A002 - click's own word
        super().__init__(name=name, help=help, commands=list(commands), context_settings=_CONTEXT)
        click.version_option(version, message="%(prog)s %(version)s")(self)

    def invoke(self, ctx: click.Context) -> Any:
        ctx.color = color()
        try:
            return super().invoke(ctx)
        except HoldfastError as exc:
            raise failure(exc) from exc
        except (KeyboardInterrupt, click.Abort):
            # From `None`: whoever interrupts knows why.
            raise click.exceptions.Exit(QUIT) from None
        except OSError as exc:
            if exc.errno == errno.EPIPE:  # the reader has gone: click ends quietly
                raise
            raise Failure(_told(exc)) from exc


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def failure(error: HoldfastError) -> Failure:
    """How a command ends that raised `error`."""
    if isinstance(error, ConfigError):
        return Mistakes("\n".join(error.problems))
    wrong_call = isinstance(error, InvalidRequest) and not isinstance(error, InvalidMessage | TooLarge)
    return Misuse(str(error)) if wrong_call else Failure(str(error))


def color() -> bool | None:
    """Whether to use colour whatever the output is: `NO_COLOR`, `FORCE_COLOR`; None: on a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def _told(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what
