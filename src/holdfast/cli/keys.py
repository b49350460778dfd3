"""`holdfast keys`: create, list, revoke."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command import Call, Note, Output, command
from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.terminal import format_line, format_time

if TYPE_CHECKING:
    from holdfast.access import ApiKeyObject
    from holdfast.config.gateway import Auth
    from holdfast.holdfast import Holdfast
    from holdfast.stores.keys import ApiKey

_PAGE = 100


@click.group
def keys() -> None:
    """Create, list and revoke API keys. Once a key exists, every request needs one."""


@command(keys)
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
def create(
    call: Call, *, tenant: str | None, user: str | None, expires: str | None, max_body: str | None, **fields: Any
) -> Output:
    """Create a key and print it once. Only its hash is stored."""
    import msgspec

    from holdfast.durations import parse_duration
    from holdfast.sections import mask_url, parse_size
    from holdfast.stores.sql.address import MEMORY, parse_path

    lifetime = None if expires is None else parse_duration(expires)
    if expires is not None and not lifetime:
        raise Misuse(f"--expires: expected a duration like 90d or 12h, got {expires!r}")
    most = None if max_body is None else parse_size(max_body)
    if max_body is not None and not most:
        raise Misuse(f"--max-body: expected a size like 1MiB or a number of bytes, got {max_body!r}")
    place = call.load_settings().store
    if place.startswith("sqlite:") and parse_path(place) == MEMORY:
        raise Failure("the store is in memory, so the key would be lost: name the server's database with --store")

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
            tenant=hf.tenant if tenant is None else tenant,
            user_id=user,
            created_at=now,
            expires_at=None if lifetime is None else now + round(lifetime * 1000),
            max_body=most,
            **fields,
        )
        await hf.store.add_key(key)
        return made.text, key

    text, key = call.run(do, create=True, keep_sessions=True)
    notes = [
        Note("Save it now: it is not shown again. Clients send it as `Authorization: Bearer KEY`."),
        Note(f"Its hash is stored in {format_line(mask_url(place))}."),
    ]
    return Output({"key": text, **msgspec.to_builtins(_to_object(key, key.created_at))}, [text, *notes])


@command(keys)
def list_(call: Call) -> Output:
    """List all keys, including revoked and expired ones. The keys themselves are not stored."""

    async def do(hf: Holdfast) -> tuple[list[ApiKey], int]:
        found: list[ApiKey] = []
        while page := await hf.store.keys(after=found[-1].id if found else "", limit=_PAGE):
            found += page
        return found, hf.clock()

    found, now = call.run(do, keep_sessions=True)
    if not found:
        return Output([], [Note(_explain_no_keys(call.load_settings().auth))])
    shown = [_to_object(key, now) for key in found]
    rows = [
        {
            "id": key.id,
            "name": key.name or "-",
            "tenant": key.tenant,
            "user": key.user_id or "-",
            "role": key.role,
            "status": key.status,
            "expires": "never" if key.expires_at is None else format_time(key.expires_at),
            "used": "never" if key.used_at is None else format_time(key.used_at),
        }
        for key in shown
    ]
    return Output(shown, [rows])


@command(keys, keep_sessions=True)
@click.argument("key_id", metavar="ID")
async def revoke(hf: Holdfast, *, key_id: str) -> Output:
    """Revoke a key permanently. Running servers notice within seconds."""
    from holdfast.access import parse_key_id

    now = hf.clock()
    # The whole key is accepted too, because its id may not be at hand.
    key = await hf.store.revoke_key(parse_key_id(key_id) or key_id, timestamp=now)
    return Output(_to_object(key, now), [f"Revoked {format_line(key.id)}."])


def _explain_no_keys(auth: Auth) -> str:
    if auth.jwt is not None and auth.kind == "always":
        return "There are no keys: the server accepts only tokens (auth.jwt)."
    if auth.kind == "always":
        remedy = "Create a key with `holdfast keys create`."
        return f"There are no keys, and auth.required is true: the server refuses every request. {remedy}"
    return "There are no keys: the server accepts requests only from its own machine."


def _to_object(key: ApiKey, now: int) -> ApiKeyObject:
    from holdfast.access import ApiKeyObject

    return ApiKeyObject.from_key(key, now)
