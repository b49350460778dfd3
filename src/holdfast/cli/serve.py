"""`holdfast serve`."""

from __future__ import annotations

import os
from typing import Any

import click

from holdfast.cli.frame import Failure
from holdfast.cli.stores import place_options
from holdfast.errors import ConfigError


@click.command
@click.option("--host", metavar="HOST", help="Address to listen on.  [default: 127.0.0.1; HOLDFAST_HOST]")
@click.option("--port", type=click.IntRange(0, 65_535), help="0: any free one.  [default: 8377; HOLDFAST_PORT]")
@click.option("--model", metavar="NAME", help="The model that answers: an llm of the configuration, or a model's name.")
@place_options
@click.pass_context
def serve(ctx: click.Context, /, **flags: Any) -> None:
    """Run the server: OpenAI's API with memory, and the REST API.

    Without a key in the environment or the configuration the built-in `offline` model answers.
    """
    from holdfast.config import load_settings
    from holdfast.server.run import serve as run

    settings = load_settings(flags, os.environ)
    try:
        code = run(settings, again=lambda: load_settings(flags, os.environ))
    except ConfigError as exc:
        if isinstance(exc.__cause__, OSError):  # the configuration is right, the address is taken
            raise Failure("\n".join([*exc.problems, "--port names another port, 0 any free one"])) from exc
        raise
    ctx.exit(code)
