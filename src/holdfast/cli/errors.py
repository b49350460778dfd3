"""Define the root command, which turns exceptions into one clear line and an exit code."""

from __future__ import annotations

import errno
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click

from holdfast.cli.terminal import sanitize
from holdfast.errors import ConfigError, HoldfastError, InvalidMessage, InvalidRequest, MissingExtra, TooLarge

FAILED, USAGE, QUIT = 1, 2, 130
"""Exit codes: failure, wrong usage, interrupted."""


class Failure(click.ClickException):
    """Raised if a command fails. `message` says what happened and how to fix the problem. Only the message is printed, to stderr."""

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(sanitize(message))


class Misuse(Failure):
    """Raised if a command is used wrongly."""

    exit_code = USAGE


class ConfigProblems(Misuse):
    """Raised if the configuration has errors. Each error names its file and line, so it is printed without click's prefix."""

    def show(self, file: Any = None) -> None:
        click.echo(self.message, file=file, err=file is None)


class RootGroup(click.Group):
    """The root group, which turns exceptions of all commands into messages and exit codes."""

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
    """Convert an error that a command raised into the failure that ends the command."""
    if isinstance(error, ConfigError):
        return ConfigProblems("\n".join(error.problems))
    if isinstance(error, MissingExtra):
        return Failure(name_interpreter(str(error)))
    wrong_call = isinstance(error, InvalidRequest) and not isinstance(error, InvalidMessage | TooLarge)
    return Misuse(str(error)) if wrong_call else Failure(str(error))


def name_interpreter(message: str) -> str:
    """Rewrite `pip install` in a message to use the running Python. The `pip` in the user's shell may belong to another one."""
    return message.replace("pip install", f"{shlex.quote(sys.executable or 'python')} -m pip install")


def choose_color() -> bool | None:
    """Return False if `NO_COLOR` is set, True if `FORCE_COLOR` is set. Otherwise return None, which means colour only on terminals."""
    if os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def _format_os_error(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what
