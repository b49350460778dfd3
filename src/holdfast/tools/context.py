"""What a tool is given of the session that it is called in."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.artifacts import SessionArtifacts
from holdfast.errors import InvalidRequest
from holdfast.session import Entry

TEMP: Final = "temp:"
"""Before keys of the state that are never stored."""
_RESERVED: Final = ("app:", "user:")
_UNWRITABLE: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""What encoding to JSON raises."""


class State(MutableMapping[str, Any]):
    """The session's state as one call of a tool sees it: what is stored, and on top of it what the call has written.

    What is written is committed together with the tool's result, and not at all where the tool fails; from then on the turn's
    other tools see it. Keys that begin with `temp:` are seen by all tools of the turn at once and never stored. None as a value
    deletes a key. What is read is a copy: to change a list in the state, write it again.

    Args:
        stored: the session's state as it stands.
        temp: what the turn's tools have under `temp:` keys.
    """

    def __init__(self, stored: Callable[[], Mapping[str, Any]], temp: dict[str, Any]) -> None:
        self._stored = stored
        self._temp = temp
        self._delta: dict[str, Any] = {}
        self._sealed = False

    def __repr__(self) -> str:
        return f"<state of {len(self)} keys>"  # values may be secrets

    def __getitem__(self, key: str) -> Any:
        _check(key)
        if key.startswith(TEMP):
            return copy.deepcopy(self._temp[key])
        value = self._delta[key] if key in self._delta else self._stored().get(key)
        if value is None:
            raise KeyError(key)
        return copy.deepcopy(value)

    def __setitem__(self, key: str, value: Any) -> None:
        _check(key)
        if self._sealed:
            raise InvalidRequest("the call of this tool has ended: its state takes nothing more", param="state")
        written = _as_json(key, value)
        if not key.startswith(TEMP):
            self._delta[key] = written
        elif written is None:
            self._temp.pop(key, None)
        else:
            self._temp[key] = written

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self[key] = None

    def __contains__(self, key: object) -> bool:
        try:
            self[key]  # type: ignore[index]  # what is no text is refused like any other wrong key
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        own = {**self._stored(), **self._delta, **self._temp}
        return iter([key for key, value in own.items() if value is not None and not key.startswith(_RESERVED)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def sealed(self) -> dict[str, Any]:
        """What was written, by key, None where a key was deleted; from now on nothing more is taken."""
        self._sealed = True
        return self._delta


async def _none(start: int, stop: int) -> Sequence[Entry]:
    return ()


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call, and where in its session it stands: for tools that keep something of a session elsewhere."""

    id: str = ""
    """The call's, as the log has it: another call of another message may have the same."""
    tenant: str = ""
    identity: str = ""
    """See `Session.identity`."""
    unit: int = 0
    """`seq` of the message that calls."""
    entries: Callable[[int, int], Awaitable[Sequence[Entry]]] = _none
    """The live entries of the log from one `seq` to before another."""


class ToolContext:
    """The session that a tool is called in. A parameter that is annotated with it gets it; the model never sees that one.

    Attributes:
        session_id: the session's id.
        user_id: whose session it is.
        agent: who answers; None: no agent.
        state: the session's state; see `State`.
        artifacts: the session's artifacts: save, load, list, versions, delete. Its methods are awaited.
        call: the call itself.
    """

    def __init__(
        self,
        *,
        session_id: str,
        user_id: str,
        agent: str | None,
        state: State,
        artifacts: SessionArtifacts,
        call: Call = Call(),  # noqa: B008  # frozen
    ) -> None:
        self.session_id = session_id
        self.user_id = user_id
        self.agent = agent
        self.state = state
        self.artifacts = artifacts
        self.call = call

    def __repr__(self) -> str:
        return f"<context of a tool in session {self.session_id!r}>"


def _check(key: object) -> None:
    """Refuse what cannot be a key of the state. Raises `InvalidRequest`."""
    if not isinstance(key, str) or not key:
        raise InvalidRequest(f"a key of the state is a text that is not empty, not {key!r:.80}", param="state")
    if key.startswith(_RESERVED):
        message = (
            f"state key {key!r:.80}: the scopes user: and app: are not there yet; a key without them is the session's"
        )
        raise InvalidRequest(message, param="state")


def _as_json(key: str, value: Any) -> Any:
    """A copy of `value` as JSON has it. Raises `InvalidRequest`."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except _UNWRITABLE as exc:
        message = f"state[{key!r:.80}] cannot be written as JSON: it is {type(value).__name__}"
        raise InvalidRequest(message, param="state") from exc
