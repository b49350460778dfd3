"""`holdfast explain`: whether messages of a session are in the prompt, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.stores import found, json_option, place_options, user_option, work
from holdfast.cli.terminal import plain, show_json

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.explanation import Explanation


@click.command
@click.argument("session_id", metavar="SESSION")
@click.option("--seq", metavar="N", type=click.IntRange(0), help="The message; `holdfast sessions show` numbers them.")
@click.option("--text", metavar="TEXT", help="Words that the messages contain, instead of --seq.")
@click.option("--turn", metavar="N", type=click.IntRange(0), help="The prompt of that turn.  [default: the next one]")
@click.option("--before", metavar="N", type=click.IntRange(0), help="With --text: only messages before that one.")
@click.option("--limit", metavar="N", type=click.IntRange(1, 50), default=10, show_default=True, help="Most messages.")
@click.option("--agent", metavar="NAME", help="Whose prompt it is.  [default: the session's agent]")
@click.option("--model", metavar="NAME", help="The same, for a model.")
@user_option
@place_options
@json_option
def explain(
    session_id: str, user: str | None, store: str | None, config: str | None, *, as_json: bool, **asked: Any
) -> None:
    """Explain what became of messages: in the prompt or not, in which block, why, since when, and what brings them back.

    Without --seq and --text the prompt alone is described.
    """
    agent, model = asked.pop("agent"), asked.pop("model")

    async def do(hf: Holdfast) -> Explanation:
        session = await found(hf, session_id, user)
        handle = hf.handle(session, agent=agent, model=model)
        return await handle.explain(**asked)

    explanation = work(do, store=store, config=config, agents=True, looks=True)
    if as_json:
        show_json(explanation)
        return
    click.echo(plain(str(explanation)))
    if asked["text"] is not None and not explanation.messages:
        click.echo("No message contains that text.", err=True)
