"""`holdfast state`: get, set and unset; for a session, a user, or all sessions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.command import Call, Note, Output, command, find_session
from holdfast.cli.errors import Failure, Misuse
from holdfast.cli.terminal import cut, format_line, sanitize
from holdfast.numbers import format_count, is_number

if TYPE_CHECKING:
    from holdfast.holdfast import Holdfast
    from holdfast.sessions.state import StateHandle

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_SHOWN = 100
"""Maximum characters of a value in a table."""


def _owner_options(function: F) -> F:
    session = click.option("--session", metavar="ID", help="State of this session, with the state it shares.")
    user = click.option(
        "--user",
        metavar="ID",
        help="State that all sessions of this user share; with --session, the user of that session.",
    )
    app = click.option("--app", is_flag=True, help="State that all sessions share.")
    return session(user(app(function)))


def _run(
    call: Call,
    what: Callable[[StateHandle], Awaitable[T]],
    *,
    session: str | None,
    user: str | None,
    app: bool,
    writes: bool = True,
) -> T:
    """Open the store, call `what` with the state of the owner that the options name, and return the result of `what`.

    Raises:
        Misuse: the options do not name exactly one owner.
    """
    if app + (session is not None or user is not None) != 1:
        raise Misuse("name one owner: --session ID, --user ID or --app")

    async def do(hf: Holdfast) -> T:
        from holdfast.sessions.state import SessionState

        if app:
            return await what(hf.app_state())
        if session is None:
            return await what(hf.user_state(str(user)))
        return await what(SessionState(hf.engine, (await find_session(hf, session, user)).ref))

    return call.run(do, writes=writes)


def _refuse_temporary(*keys: str) -> None:
    """Raise `Misuse` if a key has the prefix `temp:`. Such keys exist only during a turn, so a change would be lost without notice."""
    from holdfast.domain.state import get_scope

    for key in keys:
        if get_scope(key) == "temp":
            raise Misuse(f"{key!r} exists only during a turn: keys that begin with temp: cannot be changed here")


@click.group
def state() -> None:
    """Read and change state. A prefix of the key is its scope: user:theme, app:version. A key without one belongs to the session."""


@command(state)
@click.argument("key", metavar="[KEY]", required=False)
@_owner_options
def get(call: Call, key: str | None, **owner: Any) -> Output:
    """Show the value of a key, or of all keys."""
    if key is None:
        values = _run(call, lambda handle: handle.all(), writes=False, **owner)
        rows = [{"key": name, "value": cut(_to_json(value), _SHOWN)} for name, value in sorted(values.items())]
        return Output(values, [rows] if rows else [Note("The state is empty.")])
    value = _run(call, lambda handle: handle.get(key), writes=False, **owner)
    if value is None:
        raise Failure(f"no value is stored under {key!r}")
    return Output(value, [sanitize(value if isinstance(value, str) else _to_json(value))])


@command(state)
@click.argument("key", metavar="KEY")
@click.argument("values", metavar="VALUE...", nargs=-1)
@click.option("--text", is_flag=True, help="Treat VALUE as text even if it is valid JSON.")
@click.option(
    "--increment", metavar="NUMBER", help="Add to the number under KEY, 0 if there is none, and show the result."
)
@click.option("--append", is_flag=True, help="Append each VALUE to the list under KEY, empty if there is none.")
@_owner_options
def set_(
    call: Call, key: str, values: Sequence[str], *, text: bool, increment: str | None, append: bool, **owner: Any
) -> Output:
    """Set a key to VALUE, read as JSON if it is valid JSON, otherwise as text. Put -- before a VALUE that begins with -."""
    _refuse_temporary(key)
    if increment is not None:
        amount = _parse_value(increment)
        if values or append or text or not is_number(amount):
            raise Misuse(f"--increment: expected a number and no VALUE, got {increment!r}")
        number = _run(call, lambda handle: handle.increment(key, amount), **owner)
        return Output({key: number}, [_to_json(number)])
    taken = [value if text else _parse_value(value) for value in values]
    if append and taken:
        length = _run(call, lambda handle: handle.append(key, *taken), **owner)
        return Output({"key": key, "length": length}, [f"{format_line(key)} has {format_count(length, 'value')}."])
    if len(taken) != 1:
        raise Misuse("give one VALUE, quoted if it has spaces; only --append takes several")
    (value,) = taken
    if value is None:
        raise Misuse("null cannot be stored: use `holdfast state unset` to delete a key, or --text for the word null")
    _run(call, lambda handle: handle.set(key, value), **owner)
    return Output({key: value}, [f"Set {format_line(key)}."])


@command(state)
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@_owner_options
def unset(call: Call, keys: Sequence[str], **owner: Any) -> Output:
    """Delete keys."""
    _refuse_temporary(*keys)
    nothing = dict.fromkeys(keys)
    _run(call, lambda handle: handle.update(nothing), **owner)
    return Output(nothing, [f"Deleted {format_count(len(nothing), 'key')}."])


def _parse_value(text: str) -> Any:
    """Return `text` decoded as JSON, or unchanged if it is not valid JSON."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _to_json(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
