"""Context of a tool call: the fields of the session, and the state of all scopes with the changes of the call."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.artifacts import SessionArtifacts
from holdfast.domain.session import Entry
from holdfast.domain.state import (
    Change,
    Extend,
    Increment,
    Scope,
    add_prefix,
    apply_change,
    check_delta,
    check_key,
    combine_changes,
    encode_value,
    get_scope,
    join_deltas,
    remove_prefix,
)
from holdfast.errors import InvalidRequest

_SHARED: Final[tuple[Scope, ...]] = ("user", "app")


class TurnState:
    """The state of all scopes as the turn of a session sees it.

    Attributes:
        own: the session's own state.
        temp: `temp:` keys of the turn, which are never stored.

    Args:
        own: see above.
        temp: see above.
        hint: how to make shared scopes readable, for the error message.
    """

    def __init__(self, own: Mapping[str, Any], temp: dict[str, Any], hint: str = "") -> None:
        self.own = own
        self.temp = temp
        self._hint = hint
        self._shared: Mapping[Scope, Mapping[str, Any]] | None = None
        self._later: dict[str, Any] = {}

    @property
    def loaded(self) -> bool:
        """True if the shared scopes were read."""
        return self._shared is not None

    def set_shared(self, shared: Mapping[Scope, Mapping[str, Any]]) -> None:
        """Set the shared scopes, by scope and key without prefix."""
        self._shared, self._later = shared, {}

    def unload_shared(self) -> None:
        """Require the shared scopes to be read again."""
        self._shared = None

    def add_shared(self, values: Mapping[str, Any]) -> None:
        """Add values of shared scopes that were read later, by key with prefix; None for a deleted key."""
        self._later = {**self._later, **values}

    def get(self, key: str) -> Any:
        """Return the value of a key, or None.

        Raises:
            InvalidRequest: the key is shared and shared scopes were not read.
        """
        scope = get_scope(key)
        if scope == "temp":
            return self.temp.get(key)
        if scope == "session":
            return self.own.get(key)
        shared = self._read()
        return self._later[key] if key in self._later else shared.get(scope, {}).get(remove_prefix(key))

    def keys(self) -> Iterator[str]:
        """Yield all keys. Keys may repeat or have no value any more. Raise as `get`."""
        yield from self.own
        shared = self._read()
        for scope in _SHARED:
            yield from add_prefix(shared.get(scope, {}), scope)
        yield from self._later
        yield from self.temp

    def _read(self) -> Mapping[Scope, Mapping[str, Any]]:
        if self._shared is None:
            raise InvalidRequest(f"user: and app: keys of the state were not read: {self._hint}", param="state")
        return self._shared


class State(MutableMapping[str, Any]):
    """The state of all scopes as one call of a tool sees it, with the changes made by the call.

    Keys without a prefix belong to the session, `user:` keys to all sessions of its user, `app:` keys to all sessions of the tenant.
    Changes are committed together with the tool's result, or dropped if the tool fails; later tools of the turn see them.
    `temp:` keys are visible to all tools of the turn immediately and never stored. Setting None deletes a key. Values that are
    read are copies: to change a list in the state, set it again or use `append`.

    Args:
        turn_state: the state before the call.
    """

    def __init__(self, turn_state: TurnState) -> None:
        self._turn_state = turn_state
        self._delta: dict[str, Change] = {}
        self._sealed = False

    def __repr__(self) -> str:
        return f"<state with {len(self._delta)} changes>"  # values may be secrets

    def __getitem__(self, key: str) -> Any:
        check_key(key)
        value = self._get_value(key)
        if value is None:
            raise KeyError(key)
        return copy.deepcopy(value)

    def __setitem__(self, key: str, value: Any) -> None:
        check_key(key)
        self._change(key, _copy_as_json(key, value))

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self[key] = None

    def __contains__(self, key: object) -> bool:
        try:
            self[key]  # type: ignore[index]  # keys of other types are rejected like any wrong key
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        keys = dict.fromkeys([*self._turn_state.keys(), *self._delta])
        return iter([key for key in keys if self._get_value(key) is not None])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def increment(self, key: str, by: float = 1) -> None:
        """Add to the number stored under a key; a missing key counts as 0. Concurrent increments add up.

        Raises:
            InvalidRequest: another type is stored there, or `by` is not a number.
        """
        check_key(key)
        self._change(key, Increment(by))

    def append(self, key: str, *values: Any) -> None:
        """Append to the list stored under a key; a missing key counts as an empty list. Concurrent appends are all kept.

        Raises:
            InvalidRequest: another type is stored there, or a value is not JSON.
            TooLarge: the list would exceed its limit.
        """
        check_key(key)
        self._change(key, Extend(tuple(_copy_as_json(key, list(values)))))

    def take(self) -> dict[str, Change]:
        """Return the changes to commit, by key with its prefix, and forget them. `temp:` keys are left out."""
        delta, self._delta = self._delta, {}
        return delta

    def give_back(self, delta: Mapping[str, Change]) -> None:
        """Restore changes from `take` that could not be committed."""
        self._delta = join_deltas([delta, self._delta])

    def seal(self) -> dict[str, Change]:
        """Return the changes, and reject further ones."""
        self._sealed = True
        return self._delta

    def _get_value(self, key: str) -> Any:
        if key not in self._delta:
            return self._turn_state.get(key)
        change = self._delta[key]
        return (
            apply_change(key, self._turn_state.get(key), change) if isinstance(change, Increment | Extend) else change
        )

    def _change(self, key: str, change: Change) -> None:
        """Apply a change after checking that it is possible."""
        if self._sealed:
            raise InvalidRequest(
                "the call that this state belongs to has ended, so it cannot be changed", param="state"
            )
        check_delta({key: change})
        scope, turn_state = get_scope(key), self._turn_state
        if scope == "temp":
            _set_or_remove(turn_state.temp, key, apply_change(key, turn_state.temp.get(key), change))
            return
        change = combine_changes(key, self._delta[key], change) if key in self._delta else change
        if isinstance(change, Increment | Extend) and (scope == "session" or turn_state.loaded):
            apply_change(key, turn_state.get(key), change)
        self._delta[key] = change


def _set_or_remove(values: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def _copy_as_json(key: str, value: Any) -> Any:
    """Return a copy of `value` as JSON. Raise `InvalidRequest`."""
    try:
        return msgspec.json.decode(encode_value(key, value))
    except msgspec.DecodeError as exc:  # NaN, or nested too deep
        message = f"state[{key!r:.80}] cannot be written as JSON: it is {type(value).__name__}"
        raise InvalidRequest(message, param="state") from exc


class FoundMessage(NamedTuple):
    """A message of an earlier conversation, as shown to the model."""

    source: str
    """Id of the session."""
    at: str
    """Time of the message."""
    by: str
    """Speaker: a role or a name."""
    text: str


class SearchRequest(NamedTuple):
    """A search in earlier conversations; None means no restriction."""

    query: str
    most: int | None = None
    """Maximum number of hits."""
    since: str | None = None
    until: str | None = None
    session_id: str | None = None


async def _load_nothing(start: int, stop: int) -> Sequence[Entry]:
    return ()


def _allow_all(entry: Entry) -> bool:
    return True


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call and its place in the session, for tools that store session data elsewhere."""

    id: str = ""
    """Id of the call in the log; not unique across messages."""
    tenant: str = ""
    identity: str = ""
    """`Session.identity`."""
    unit: int = 0
    """`seq` of the message with the call."""
    entries: Callable[[int, int], Awaitable[Sequence[Entry]]] = _load_nothing
    """Returns live entries of the log from one `seq` up to another."""
    sees: Callable[[Entry], bool] = _allow_all
    """Returns True if the caller may see an entry: it does not belong to another parallel branch."""
    transfer: Callable[[str], Awaitable[None]] | None = None
    """Lets the named agent answer from the next model call on; None if no agent can take over."""
    delegate: Callable[[ToolContext, str, str], Awaitable[str]] | None = None
    """Asks an agent (context, name, request) and returns its reply; None if no agent can be called."""
    search: Callable[[SearchRequest], Awaitable[Sequence[FoundMessage]]] | None = None
    """Searches the user's conversations; None if search is not available."""
    memories: Any = None
    """`holdfast.memory.session_memories.SessionMemories` of the session, or None."""
    most: int = 64 * 1024
    """Maximum bytes of a result, from `ToolLimits`."""


class ToolContext:
    """The session in which a tool is called. A parameter annotated with this class receives it; the model does not see it.

    Attributes:
        session_id: id of the session.
        user_id: user of the session.
        agent: agent that answers, or None.
        state: state of the session; see `State`.
        artifacts: artifacts of the session: save, load, list, versions, delete. The methods are async.
        call: the call itself.
        noted: metadata that a built-in tool adds to its result; dropped if the call fails.
        marked: metadata that is added in any case.
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
        self.noted: dict[str, Any] = {}
        self.marked: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<context of a tool in session {self.session_id!r}>"
