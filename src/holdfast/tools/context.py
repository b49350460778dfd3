"""What a call of a tool is given of its session: the session's fields, and the state of all scopes with what the call itself writes."""

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
    bare,
    changed,
    check_delta,
    check_key,
    combined,
    encoded,
    joined,
    prefixed,
    scope_of,
)
from holdfast.errors import InvalidRequest

_SHARED: Final[tuple[Scope, ...]] = ("user", "app")


class Standing:
    """What stands in the state of all scopes, as the turn of a session sees it.

    Attributes:
        own: the session's own.
        temp: what there is under `temp:` keys: the turn's own, never stored.

    Args:
        own: see above.
        temp: see above.
        hint: what is to be done before the scopes that sessions share can be read here.
    """

    def __init__(self, own: Mapping[str, Any], temp: dict[str, Any], hint: str = "") -> None:
        self.own = own
        self.temp = temp
        self._hint = hint
        self._shared: Mapping[Scope, Mapping[str, Any]] | None = None
        self._later: dict[str, Any] = {}

    @property
    def loaded(self) -> bool:
        """Whether what sessions share was read."""
        return self._shared is not None

    def put(self, shared: Mapping[Scope, Mapping[str, Any]]) -> None:
        """Take in what sessions share, by scope and then by key without its prefix, as it was just read."""
        self._shared, self._later = shared, {}

    def forget(self) -> None:
        """Have it read again before it is used."""
        self._shared = None

    def note(self, values: Mapping[str, Any]) -> None:
        """Take in some of it that was read later, by key with its prefix; None: nothing stands there any more."""
        self._later = {**self._later, **values}

    def value(self, key: str) -> Any:
        """What stands under a key; None: nothing.

        Raises:
            InvalidRequest: it is shared, and was not read.
        """
        scope = scope_of(key)
        if scope == "temp":
            return self.temp.get(key)
        if scope == "session":
            return self.own.get(key)
        shared = self._read()
        return self._later[key] if key in self._later else shared.get(scope, {}).get(bare(key))

    def keys(self) -> Iterator[str]:
        """All keys, some of them maybe twice, or with nothing under them any more. Raises as `value`."""
        yield from self.own
        shared = self._read()
        for scope in _SHARED:
            yield from prefixed(shared.get(scope, {}), scope)
        yield from self._later
        yield from self.temp

    def _read(self) -> Mapping[Scope, Mapping[str, Any]]:
        if self._shared is None:
            raise InvalidRequest(f"user: and app: keys of the state were not read: {self._hint}", param="state")
        return self._shared


class State(MutableMapping[str, Any]):
    """The state of all scopes as one call of a tool sees it: what stands, and on top of it what the call has written.

    A key without a prefix is the session's own, `user:` is before those that all sessions of its user share, `app:` before those
    that all of the tenant do. What is written is committed together with the tool's result, and not at all where the tool
    fails; from then on the turn's other tools see it. Keys that begin with `temp:` are seen by all tools of the turn at once
    and never stored. None as a value deletes a key. What is read is a copy: to change a list in the state, write it again, or
    `append` to it.

    Args:
        standing: what stands.
    """

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._delta: dict[str, Change] = {}
        self._sealed = False

    def __repr__(self) -> str:
        return f"<state with {len(self._delta)} changes>"  # values may be secrets

    def __getitem__(self, key: str) -> Any:
        check_key(key)
        value = self._value(key)
        if value is None:
            raise KeyError(key)
        return copy.deepcopy(value)

    def __setitem__(self, key: str, value: Any) -> None:
        check_key(key)
        self._change(key, _as_json(key, value))

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
        keys = dict.fromkeys([*self._standing.keys(), *self._delta])
        return iter([key for key in keys if self._value(key) is not None])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def increment(self, key: str, by: float = 1) -> None:
        """Add to the number under a key, to 0 where there is none: with those of other sessions it adds up.

        Raises:
            InvalidRequest: something else stands there, or `by` is no number.
        """
        check_key(key)
        self._change(key, Increment(by))

    def append(self, key: str, *values: Any) -> None:
        """Add values to the end of the list under a key, of an empty one where there is none: nobody else's are lost by it.

        Raises:
            InvalidRequest: something else stands there, or one of the values is no JSON.
            TooLarge: the list would be.
        """
        check_key(key)
        self._change(key, Extend(tuple(_as_json(key, list(values)))))

    def taken(self) -> dict[str, Change]:
        """What was written since the last time, by key with its prefix, without `temp:` keys: for whoever commits it."""
        delta, self._delta = self._delta, {}
        return delta

    def give_back(self, delta: Mapping[str, Change]) -> None:
        """Take back what was `taken` and could not be committed."""
        self._delta = joined([delta, self._delta])

    def sealed(self) -> dict[str, Change]:
        """What was written; from now on nothing more is taken."""
        self._sealed = True
        return self._delta

    def _value(self, key: str) -> Any:
        if key not in self._delta:
            return self._standing.value(key)
        change = self._delta[key]
        return changed(key, self._standing.value(key), change) if isinstance(change, Increment | Extend) else change

    def _change(self, key: str, change: Change) -> None:
        """Take a change in that could be made as things stand."""
        if self._sealed:
            raise InvalidRequest("what this state was for has ended: it takes nothing more", param="state")
        check_delta({key: change})
        scope, standing = scope_of(key), self._standing
        if scope == "temp":
            _put(standing.temp, key, changed(key, standing.temp.get(key), change))
            return
        change = combined(key, self._delta[key], change) if key in self._delta else change
        if isinstance(change, Increment | Extend) and (scope == "session" or standing.loaded):
            changed(key, standing.value(key), change)
        self._delta[key] = change


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def _as_json(key: str, value: Any) -> Any:
    """A copy of `value` as JSON has it. Raises `InvalidRequest`."""
    try:
        return msgspec.json.decode(encoded(key, value))
    except msgspec.DecodeError as exc:  # a number that is none, nested too deep
        message = f"state[{key!r:.80}] cannot be written as JSON: it is {type(value).__name__}"
        raise InvalidRequest(message, param="state") from exc


class Found(NamedTuple):
    """Something that was said in an earlier conversation, as a model is told of it."""

    source: str
    """The session's id."""
    at: str
    """When."""
    by: str
    """Who said it: a role, a name."""
    text: str


class Wanted(NamedTuple):
    """What a model searches earlier conversations for; None: any."""

    query: str
    most: int | None = None
    """Hits."""
    since: str | None = None
    until: str | None = None
    session_id: str | None = None


async def _none(start: int, stop: int) -> Sequence[Entry]:
    return ()


def _all(entry: Entry) -> bool:
    return True


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
    sees: Callable[[Entry], bool] = _all
    """Whether who calls may see one of these: it is not another branch's, of agents that speak side by side."""
    transfer: Callable[[str], Awaitable[None]] | None = None
    """Has the agent of that name answer from the next call of the model on; None: nobody can take over here."""
    delegate: Callable[[ToolContext, str, str], Awaitable[str]] | None = None
    """Given the context of the call, an agent's name and what is wanted, its reply; None: no agent can be called here."""
    search: Callable[[Wanted], Awaitable[Sequence[Found]]] | None = None
    """What the user's conversations have; None: nothing can be searched here."""
    memories: Any = None
    """The `holdfast.memory.session_memories.SessionMemories` of the session; None: there are none here."""
    most: int = 64 * 1024
    """Bytes of a result, as `ToolLimits` says."""


class ToolContext:
    """The session that a tool is called in. A parameter that is annotated with it gets it; the model never sees that one.

    Attributes:
        session_id: the session's id.
        user_id: whose session it is.
        agent: who answers; None: no agent.
        state: the session's state; see `State`.
        artifacts: the session's artifacts: save, load, list, versions, delete. Its methods are awaited.
        call: the call itself.
        noted: what a built-in tool has said of the call in the metadata of its result; nothing where it fails.
        marked: the same, whatever becomes of the call.
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
