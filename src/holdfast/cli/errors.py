"""The root command. It turns exceptions into one clear line and an exit code."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import click

from holdfast.cli.terminal import sanitize
from holdfast.errors import ConfigError, HoldfastError, InvalidMessage, InvalidRequest, TooLarge

FAILED, USAGE, QUIT = 1, 2, 130
"""Exit codes: failure, wrong usage, interrupted."""


class Failure(click.ClickException):
    """A failed command. `message` says what happened and how to fix it; it goes to stderr without a traceback."""

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(sanitize(message))


class Misuse(Failure):
    """Wrong usage of a command."""

    exit_code = USAGE


class ConfigProblems(Misuse):
    """Configuration errors. Each line already names its file and line, so click adds no prefix."""

    def show(self, file: Any = None) -> None:
        click.echo(self.message, file=file, err=file is None)


class RootGroup(click.Group):
    """The root group. It turns exceptions of all commands into messages and exit codes."""

    def __init__(self, *, name: str, version: str, help: str, commands: Sequence[click.Command]) -> None:  # noqa: A002 - click's own word
        super().__init__(name=name, help=help, commands=list(commands), context_settings=_CONTEXT)
        click.version_option(version, message="%(prog)s %(version)s")(self)

    def invoke(self, ctx: click.Context) -> Any:
        ctx.color = choose_color()
        try:
            return super().invoke(ctx)
        except HoldfastError as exc:
            raise to_failure(exc) from exc
        except (KeyboardInterrupt, click.Abort):
            # From `None`: an interruption needs no explanation.
            raise click.exceptions.Exit(QUIT) from None
        except OSError as exc:
            if exc.errno == errno.EPIPE:  # the reader of the pipe has gone: click ends quietly
                raise
            raise Failure(_format_os_error(exc)) from exc


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def to_failure(error: HoldfastError) -> Failure:
    """Return the failure that ends a command which raised `error`."""
    if isinstance(error, ConfigError):
        return ConfigProblems("\n".join(error.problems))
    wrong_call = isinstance(error, InvalidRequest) and not isinstance(error, InvalidMessage | TooLarge)
    return Misuse(str(error)) if wrong_call else Failure(str(error))


def choose_color() -> bool | None:
    """Return True or False if `FORCE_COLOR` or `NO_COLOR` is set, else None: colour on terminals only."""
    if os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def _format_os_error(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what
