"""`holdfast migrate`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import click

from holdfast.cli.stores import json_option, place_options, require
from holdfast.cli.terminal import show_json

if TYPE_CHECKING:
    from holdfast.stores import SchemaStep


@click.command
@click.option("--show", is_flag=True, help="Only show what there is to do; nothing is changed.")
@place_options
@json_option
def migrate(store: str | None, config: str | None, *, show: bool, as_json: bool) -> None:
    """Bring the database's schema up to date, and say what was done.

    Every use of a database does that by itself. This is for doing it before, by a user who may change the schema, or at a
    time of your own: servers that come later find it done. It is safe beside running servers and beside itself.
    """
    import anyio

    from holdfast.config import load_settings
    from holdfast.settings import mask_url

    url = load_settings({"store": store, "config": config}, os.environ).store
    require(url)
    steps = anyio.run(_migrated, url, show)
    if as_json:
        show_json({"store": mask_url(url), "migrations": [step._asdict() for step in steps]})
        return
    for step in steps:
        click.echo(f"{step.number:>4}  {step.name:<24}  {step.status}")


class Told(NamedTuple):
    """One change of the schema."""

    number: int
    name: str
    status: str
    """`applied` before, `applied now` or `pending`."""


async def _migrated(url: str, show: bool) -> list[Told]:  # noqa: FBT001  # the caller passes positions on
    from holdfast.stores import open_store, schema_of

    before = await schema_of(url)
    if not show:
        # Opening applies what is missing, as every other command does.
        await (await open_store(url, tenant="default")).close()
    return [_told(step, show=show) for step in before]


def _told(step: SchemaStep, *, show: bool) -> Told:
    missing = "pending" if show else "applied now"
    return Told(step.number, step.name, "applied" if step.applied else missing)
