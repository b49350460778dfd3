"""Define the context of a tool call: its session, and the state of all scopes with the changes that the call makes."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.artifacts.service import SessionArtifacts
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
    remove_prefix,
)
from holdfast.errors import InvalidRequest
from holdfast.memory.files import MemoryFiles

_SHARED: Final[tuple[Scope, ...]] = ("user", "app")


class TurnState:
    """The state of all scopes as the tools of one turn see it.

    The arguments `own` and `temp` become the attributes.

    Attributes:
        own: the session's own state.
        temp: values of the turn's `temp:` keys, which are never stored.

    Args:
        hint: advice on how to read the shared scopes, for the error message if they were not read.
    """

    def __init__(self, own: Mapping[str, Any], temp: dict[str, Any], hint: str = "") -> None:
        self.own = own
        self.temp = temp
        self._hint = hint
        self._shared: Mapping[Scope, Mapping[str, Any]] | None = None
        self._later: dict[str, Any] = {}

    @property
    def loaded(self) -> bool:
        """True if the values of the shared scopes (`user` and `app`) are known."""
        return self._shared is not None

    def set_shared(self, shared: Mapping[Scope, Mapping[str, Any]]) -> None:
        """Set the values of the shared scopes, by scope and then by key without prefix."""
        self._shared, self._later = shared, {}

    def unload_shared(self) -> None:
        """Forget the values of the shared scopes. They must be read again before their next use."""
        self._shared = None

    def add_shared(self, values: Mapping[str, Any]) -> None:
        """Replace values of keys in the shared scopes.

        Args:
            values: the new values, by key with prefix. None means that the key was deleted.
        """
        self._later = {**self._later, **values}

    def get(self, key: str) -> Any:
        """Return the value of a key, or None if it has no value.

        Raises:
            InvalidRequest: the key belongs to a shared scope, and the shared scopes were not read.
        """
        scope = get_scope(key)
        if scope == "temp":
            return self.temp.get(key)
        if scope == "session":
            return self.own.get(key)
        shared = self._read()
        return self._later[key] if key in self._later else shared.get(scope, {}).get(remove_prefix(key))

    def keys(self) -> Iterator[str]:
        """Yield all keys. A key may be yielded twice, or may no longer have a value.

        Raises:
            InvalidRequest: the shared scopes were not read.
        """
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
    """The state of all scopes as one tool call sees it, with the changes that the call makes.

    Keys without a prefix belong to the session, `user:` keys to all sessions of the user, and `app:` keys to all sessions of the
    tenant. Changes of these keys are committed together with the tool's result, and later tools of the turn see them. If the tool
    fails, its changes are dropped. Changes of `temp:` keys are never stored, and all tools of the turn see them at once.

    Setting a key to None deletes it. Values that are read are copies: to change a list in the state, set it again or use `append`.

    Attributes:
        held: changes that `take` returned, while they are being committed, or until their commit is tried again. Readers see them;
            `take` does not return them again.

    Args:
        turn_state: the state before the call.
    """

    def __init__(self, turn_state: TurnState) -> None:
        self._turn_state = turn_state
        self._delta: dict[str, Change] = {}
        self.held: Mapping[str, Change] = {}
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
        keys = dict.fromkeys([*self._turn_state.keys(), *self.held, *self._delta])
        return iter([key for key in keys if self._get_value(key) is not None])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def increment(self, key: str, by: float = 1) -> None:
        """Add `by` to the number stored under a key. For a missing key, start at 0. Concurrent increments add up.

        Raises:
            InvalidRequest: the stored value is not a number, or `by` is not a number.
        """
        check_key(key)
        self._change(key, Increment(by))

    def append(self, key: str, *values: Any) -> None:
        """Append values to the list stored under a key. For a missing key, start with an empty list. Concurrent appends are all kept.

        Raises:
            InvalidRequest: the stored value is not a list, or a new value is not JSON.
            TooLarge: the list would exceed its size limit.
        """
        check_key(key)
        self._change(key, Extend(tuple(_copy_as_json(key, list(values)))))

    def take(self) -> dict[str, Change]:
        """Return the changes to commit, by key with prefix, and remove them from this object. `temp:` keys are not included."""
        delta, self._delta = self._delta, {}
        return delta

    @property
    def is_changed(self) -> bool:
        """True if there are changes to commit."""
        return bool(self._delta)

    def seal(self) -> dict[str, Change]:
        """Return the changes to commit, and reject all later changes."""
        self._sealed = True
        return self._delta

    def _get_value(self, key: str) -> Any:
        if key not in self._delta:
            return self._get_held(key)
        change = self._delta[key]
        return apply_change(key, self._get_held(key), change) if isinstance(change, Increment | Extend) else change

    def _get_held(self, key: str) -> Any:
        """Return the value of a key without the changes that `take` will return."""
        if key not in self.held:
            return self._turn_state.get(key)
        change = self.held[key]
        return (
            apply_change(key, self._turn_state.get(key), change) if isinstance(change, Increment | Extend) else change
        )

    def _change(self, key: str, change: Change) -> None:
        """Check a change and record it for the commit. A change of a `temp:` key is applied at once."""
        if self._sealed:
            raise InvalidRequest(
                "the call that this state belongs to has ended, so it cannot be changed", param="state"
            )
        check_delta({key: change})
        scope, turn_state = get_scope(key), self._turn_state
        if scope == "temp":
            value = apply_change(key, turn_state.temp.get(key), change)
            if value is None:
                turn_state.temp.pop(key, None)
            else:
                turn_state.temp[key] = value
            return
        change = combine_changes(key, self._delta[key], change) if key in self._delta else change
        if isinstance(change, Increment | Extend) and (scope == "session" or turn_state.loaded):
            apply_change(key, self._get_held(key), change)
        self._delta[key] = change


def _copy_as_json(key: str, value: Any) -> Any:
    """Return a copy of `value` that contains only JSON types. Raise `InvalidRequest` if that is impossible."""
    try:
        return msgspec.json.decode(encode_value(key, value))
    except msgspec.DecodeError as exc:  # NaN, or nested too deep
        message = f"state[{key!r:.80}] cannot be written as JSON: it is {type(value).__name__}"
        raise InvalidRequest(message, param="state") from exc


class FoundMessage(NamedTuple):
    """A message that a search found, as shown to the model."""

    source: str
    """Id of the session that contains the message."""
    at: str
    """Time of the message."""
    by: str
    """Speaker of the message: a role or a name."""
    text: str


class SearchRequest(NamedTuple):
    """A search in the user's conversations. A field that is None does not restrict the search."""

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
    """A tool call and its position in the session.

    The ids let a tool store data of the session outside the session. The functions are for built-in tools.
    """

    id: str = ""
    """Id of the call in the log. Calls in different messages may have the same id."""
    tenant: str = ""
    identity: str = ""
    """`Session.identity`, which distinguishes the session from later ones with the same id."""
    unit: int = 0
    """`seq` of the message that contains the call."""
    entries: Callable[[int, int], Awaitable[Sequence[Entry]]] = _load_nothing
    """Returns the live entries of the log whose `seq` is at least the first argument and less than the second."""
    sees: Callable[[Entry], bool] = _allow_all
    """Returns True if the caller may see an entry. The caller may not see entries of other parallel branches."""
    transfer: Callable[[str], Awaitable[None]] | None = None
    """Hands the conversation to the agent with this name, which answers from the next model call. None: no agent can take over."""
    delegate: Callable[[ToolContext, str, str], Awaitable[str]] | None = None
    """Calls an agent and returns its reply. The arguments are the context, the agent's name and the request. None: no agent can be called."""
    search: Callable[[SearchRequest], Awaitable[Sequence[FoundMessage]]] | None = None
    """Searches the user's conversations; None: search is not available."""
    declared: Mapping[str, Any] = {}
    """The request's own declaration of the tool, if it is one of Anthropic's tools that Holdfast runs; otherwise empty."""
    turn: int = 0
    """Number of the turn in the session."""
    files: MemoryFiles | None = None
    """The memory files of the session's user and the turn's agent; None: not available."""
    reviews_files: bool = True
    """True: changes of memory files whose words come from a tool are held."""
    memories: Any = None
    """Memories that the session may use, as `holdfast.memory.session_memories.SessionMemories`; None: not available."""
    most: int = 64 * 1024
    """Maximum bytes of a result, from `ToolLimits.result`."""


class ToolContext:
    """The context of a tool call: the session, its state and its artifacts.

    A tool gets the context in a parameter that is annotated with this class. The model does not see this parameter.

    Attributes:
        session_id: id of the session.
        user_id: id of the session's user.
        agent: name of the agent that answers; None: the turn has no agent.
        state: state of all scopes, as this call sees it.
        artifacts: artifacts of the session, with the async methods save, load, list, versions and delete.
        call: the call itself.
        noted: metadata that a built-in tool adds to its result in the log; dropped if the call fails.
        marked: metadata that is added to the result even if the call fails.
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
