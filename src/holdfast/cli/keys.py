"""`holdfast keys`: create, list, revoke."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.stores import json_option, run_with_store, store_options
from holdfast.cli.terminal import Column, format_line, format_time, show_json, show_table

if TYPE_CHECKING:
    from holdfast.config.gateway import Auth
    from holdfast.holdfast import Holdfast
    from holdfast.stores.keys import ApiKey

_PAGE = 100


@click.group
def keys() -> None:
    """Create, list and revoke API keys. Once a key exists, every request needs one."""


@keys.command
@click.option("--tenant", metavar="ID", help="Tenant of the key.  [default: the server's own tenant]")
@click.option("--user", metavar="ID", help="Restrict the key to this user.  [default: all users of the tenant]")
@click.option(
    "--role",
    type=click.Choice(["read", "write", "admin"]),
    default="write",
    show_default=True,
    help="read: only reads; write: also changes data; admin: also deletes users.",
)
@click.option("--name", metavar="TEXT", default="", help="Name of the key, for your own use.")
@click.option("--expires", metavar="TIME", help="Lifetime, like 90d or 12h.  [default: never expires]")
@click.option("--rate", type=click.IntRange(1, 1_000_000_000), metavar="N", help="Maximum requests per minute.")
@click.option("--max-body", metavar="SIZE", help="Maximum size of a request body, like 1MiB.")
@click.option(
    "--session-mode",
    type=click.Choice(["auto", "transcript", "delta"]),
    help="Mode of requests that name a session but no mode. transcript: they send the whole history; delta: only new messages; auto: Holdfast decides.",
)
@click.option(
    "--budget",
    type=click.IntRange(1, 1_000_000_000),
    metavar="TOKENS",
    help="Maximum tokens of the conversation in a prompt.",
)
@store_options
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
    """Create a key and print it once. Only its hash is stored."""
    from holdfast.sections import mask_url

    seconds, most = _parse_duration(expires), _parse_size(max_body)
    place = _find_durable_store(store, config)

    async def do(hf: Holdfast) -> tuple[str, ApiKey]:
        import secrets

        from holdfast.access import ID_RANDOM, SECRET_RANDOM, create_key
        from holdfast.stores.checks import check_new_id
        from holdfast.stores.keys import ApiKey

        for value, option in ((tenant, "--tenant"), (user, "--user")):
            if value is not None:
                check_new_id(value, option)
        made, now = create_key(secrets.token_bytes(ID_RANDOM + SECRET_RANDOM)), hf.clock()
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

    text, key = run_with_store(do, store=store, config=config, create=True, keep_sessions=True)
    if as_json:
        show_json({"key": text, **_to_row(key, key.created_at)})
        return
    click.echo(text)
    click.echo("Save it now: it is not shown again. Clients send it as `Authorization: Bearer KEY`.", err=True)
    click.echo(f"Its hash is stored in {format_line(mask_url(place))}.", err=True)


@keys.command(name="list")
@store_options
@json_option
def list_(store: str | None, config: str | None, *, as_json: bool) -> None:
    """List all keys, including revoked and expired ones. The keys themselves are not stored."""
    from holdfast.config import load_settings

    async def do(hf: Holdfast) -> tuple[list[ApiKey], int]:
        found: list[ApiKey] = []
        while page := await hf.store.keys(after=found[-1].id if found else "", limit=_PAGE):
            found += page
        return found, hf.clock()

    listed, now = run_with_store(do, store=store, config=config, keep_sessions=True)
    if as_json:
        show_json([_to_row(key, now) for key in listed])
    elif listed:
        _show_table(listed, now)
    else:
        click.echo(
            _explain_no_keys(load_settings({"store": store, "config": config}, os.environ).config.auth), err=True
        )


@keys.command
@click.argument("key_id", metavar="ID")
@store_options
@json_option
def revoke(key_id: str, store: str | None, config: str | None, *, as_json: bool) -> None:
    """Revoke a key permanently. Running servers notice within seconds."""
    from holdfast.access import parse_key_id

    wanted = parse_key_id(key_id) or key_id  # the whole key is accepted too: its id may not be at hand

    async def do(hf: Holdfast) -> tuple[ApiKey, int]:
        now = hf.clock()
        return await hf.store.revoke_key(wanted, timestamp=now), now

    key, now = run_with_store(do, store=store, config=config, keep_sessions=True)
    if as_json:
        show_json(_to_row(key, now))
    else:
        click.echo(f"Revoked {format_line(key.id)}.")


def _explain_no_keys(auth: Auth) -> str:
    if auth.jwt is not None and auth.kind == "always":
        return "There are no keys: the server accepts only tokens (auth.jwt)."
    if auth.kind == "always":
        remedy = "Create a key with `holdfast keys create`."
        return f"There are no keys, and auth.required is true: the server refuses every request. {remedy}"
    return "There are no keys: the server accepts requests only from its own machine."


def _show_table(listed: Sequence[ApiKey], now: int) -> None:
    columns = [Column(name) for name in ("id", "name", "tenant", "user", "role", "status", "expires", "used")]
    rows = [
        [
            key.id,
            key.name or "-",
            key.tenant,
            key.user_id or "-",
            key.role,
            _get_status(key, now),
            "never" if key.expires_at is None else format_time(key.expires_at),
            "never" if key.used_at is None else format_time(key.used_at),
        ]
        for key in listed
    ]
    show_table(columns, rows)


def _to_row(key: ApiKey, now: int) -> dict[str, Any]:
    names = ("id", "name", "tenant", "user_id", "role", "created_at", "expires_at", "revoked_at", "used_at")
    return {
        **{name: getattr(key, name) for name in (*names, "rate", "max_body", "session_mode", "budget")},
        "status": _get_status(key, now),
    }


def _get_status(key: ApiKey, now: int) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and now >= key.expires_at else "valid"


def _parse_duration(text: str | None) -> int | None:
    """Parse a duration into milliseconds. Raise `Misuse` if it is not valid."""
    from holdfast.durations import parse_duration

    if text is None:
        return None
    seconds = parse_duration(text)
    if not seconds:
        raise Misuse(f"--expires: expected a duration like 90d or 12h, got {text!r}")
    return round(seconds * 1000)


def _parse_size(text: str | None) -> int | None:
    """Parse a size into bytes. Raise `Misuse` if it is not valid."""
    from holdfast.sections import parse_size

    if text is None:
        return None
    size = parse_size(text)
    if not size:
        raise Misuse(f"--max-body: expected a size like 1MiB or a number of bytes, got {text!r}")
    return size


def _find_durable_store(store: str | None, config: str | None) -> str:
    """Return the URL of the store. If the store is in memory, raise `Failure`, because the key would be lost when the command ends."""
    from holdfast.config import load_settings
    from holdfast.stores.sql.address import MEMORY, parse_path

    url = load_settings({"store": store, "config": config}, os.environ).store
    if url.startswith("sqlite:") and parse_path(url) == MEMORY:
        raise Failure("the store is in memory, so the key would be lost: name the server's database with --store")
    return url
