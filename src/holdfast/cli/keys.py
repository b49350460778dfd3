"""`holdfast keys`: create, list, revoke."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.stores import json_option, place_options, work
from holdfast.cli.terminal import Column, line, moment, show_json, show_table

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast
    from holdfast.stores.keys import ApiKey

_PAGE = 100


@click.group
def keys() -> None:
    """Make, list and revoke API keys of the server. As soon as there is one, every request needs one."""


@keys.command
@click.option("--tenant", metavar="ID", help="Whose sessions it opens.  [default: the server's own tenant's]")
@click.option("--user", metavar="ID", help="The only user that it acts for.  [default: any of the tenant]")
@click.option(
    "--role",
    type=click.Choice(["read", "write", "admin"]),
    default="write",
    show_default=True,
    help="Look; also change; also remove users.",
)
@click.option("--name", metavar="TEXT", default="", help="What you call it.")
@click.option("--expires", metavar="TIME", help="When it ends, from now: 90d, 12h.  [default: never]")
@click.option("--rate", type=click.IntRange(1, 1_000_000_000), metavar="N", help="Requests a minute.")
@click.option("--max-body", metavar="SIZE", help="Largest request body, like 1MiB.")
@click.option(
    "--session-mode",
    type=click.Choice(["auto", "transcript", "delta"]),
    help="How messages with a session id are read where a request does not say.",
)
@click.option(
    "--budget",
    type=click.IntRange(1, 1_000_000_000),
    metavar="TOKENS",
    help="Most tokens of a conversation in a prompt.",
)
@place_options
@json_option
def create(
    *,
    tenant: str | None,
    user: str | None,
    role: Any,
    name: str,
    expires: str | None,
    rate: int | None,
    max_body: str | None,
    session_mode: Any,
    budget: int | None,
    store: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Make a key and show it: this once, since only its hash is kept."""
    seconds, most = _duration(expires), _size(max_body)
    _refuse_memory(store, config)

    async def do(hf: Holdfast) -> tuple[str, ApiKey]:
        import secrets

        from holdfast.access import ID_RANDOM, SECRET_RANDOM, new_key
        from holdfast.stores.checks import check_id
        from holdfast.stores.keys import ApiKey

        for value, option in ((tenant, "--tenant"), (user, "--user")):
            if value is not None:
                check_id(value, option)
        made, now = new_key(secrets.token_bytes(ID_RANDOM + SECRET_RANDOM)), hf.clock()
        key = ApiKey(
            id=made.id,
            hash=made.hash,
            name=name,
            tenant=hf.tenant if tenant is None else tenant,
            user_id=user,
            role=role,
            created_at=now,
            expires_at=None if seconds is None else now + seconds,
            rate=rate,
            max_body=most,
            session_mode=session_mode,
            budget=budget,
        )
        await hf.store.add_key(key)
        return made.text, key

    text, key = work(do, store=store, config=config, makes=True, still=True)
    if as_json:
        show_json({"key": text, **_row(key, key.created_at)})
        return
    click.echo(text)
    click.echo("Keep it: it is not shown again. Clients send it as `Authorization: Bearer`.", err=True)


@keys.command(name="list")
@place_options
@json_option
def list_(store: str | None, config: str | None, *, as_json: bool) -> None:
    """List keys, revoked and expired ones too. The keys themselves are kept nowhere."""

    async def do(hf: Holdfast) -> tuple[list[ApiKey], int]:
        found: list[ApiKey] = []
        while page := await hf.store.keys(after=found[-1].id if found else "", limit=_PAGE):
            found += page
        return found, hf.clock()

    listed, now = work(do, store=store, config=config, still=True)
    if as_json:
        show_json([_row(key, now) for key in listed])
    elif listed:
        _table(listed, now)
    else:
        click.echo("There are no keys: the server answers everybody on its own machine, and nobody else.", err=True)


@keys.command
@click.argument("key_id", metavar="ID")
@place_options
@json_option
def revoke(key_id: str, store: str | None, config: str | None, *, as_json: bool) -> None:
    """Make a key invalid for good. Servers that run notice within seconds."""
    from holdfast.access import id_in

    wanted = id_in(key_id) or key_id  # somebody may have nothing but the key

    async def do(hf: Holdfast) -> tuple[ApiKey, int]:
        now = hf.clock()
        return await hf.store.revoke_key(wanted, timestamp=now), now

    key, now = work(do, store=store, config=config, still=True)
    if as_json:
        show_json(_row(key, now))
    else:
        click.echo(f"Revoked {line(key.id)}.")


def _table(listed: Sequence[ApiKey], now: int) -> None:
    columns = [Column(name) for name in ("id", "name", "tenant", "user", "role", "status", "expires", "used")]
    rows = [
        [
            key.id,
            key.name or "-",
            key.tenant,
            key.user_id or "-",
            key.role,
            _status(key, now),
            "never" if key.expires_at is None else moment(key.expires_at),
            "never" if key.used_at is None else moment(key.used_at),
        ]
        for key in listed
    ]
    show_table(columns, rows)


def _row(key: ApiKey, now: int) -> dict[str, Any]:
    names = ("id", "name", "tenant", "user_id", "role", "created_at", "expires_at", "revoked_at", "used_at")
    return {
        **{name: getattr(key, name) for name in (*names, "rate", "max_body", "session_mode", "budget")},
        "status": _status(key, now),
    }


def _status(key: ApiKey, now: int) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and now >= key.expires_at else "valid"


def _duration(text: str | None) -> int | None:
    """Milliseconds. Raises `Misuse`."""
    from holdfast.durations import parse_duration

    if text is None:
        return None
    seconds = parse_duration(text)
    if not seconds:
        raise Misuse(f"--expires: expected a duration like 90d or 12h, got {text!r}")
    return round(seconds * 1000)


def _size(text: str | None) -> int | None:
    """Bytes. Raises `Misuse`."""
    from holdfast.settings import parse_size

    if text is None:
        return None
    size = parse_size(text)
    if not size:
        raise Misuse(f"--max-body: expected a size like 1MiB or a number of bytes, got {text!r}")
    return size


def _refuse_memory(store: str | None, config: str | None) -> None:
    """A key in memory is gone before anybody could use it. Raises `Failure`."""
    import os

    from holdfast.config import load_settings
    from holdfast.stores.sql.address import MEMORY, path_of

    url = load_settings({"store": store, "config": config}, os.environ).store
    if url.startswith("sqlite:") and path_of(url) == MEMORY:
        raise Failure("the store is in memory, and would be gone with this command: name the server's with --store")
