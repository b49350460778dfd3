"""`holdfast.connect` has the interface of the library, method by method, except for what is listed here."""

from __future__ import annotations

import inspect
from typing import Final

import pytest

from holdfast.artifacts.service import SessionArtifacts
from holdfast.holdfast import Holdfast
from holdfast.memory.memories import Memories
from holdfast.remote.artifacts import RemoteArtifacts
from holdfast.remote.connection import RemoteHoldfast
from holdfast.remote.memories import RemoteMemories
from holdfast.remote.records import RemoteRecords
from holdfast.remote.session import RemoteSession
from holdfast.remote.state import RemoteFacts, RemoteState
from holdfast.remote.turns import OpenRemoteTurn, RemoteTurn
from holdfast.sessions.facts import SessionFacts
from holdfast.sessions.handle import SessionHandle
from holdfast.sessions.records import Records
from holdfast.sessions.state import SessionState, SharedState
from holdfast.turns.library_turn import LibraryTurn, OpenTurn
from scripts.reference import INTERNAL

PAIRS: Final[tuple[tuple[type, type], ...]] = (
    (Holdfast, RemoteHoldfast),
    (SessionHandle, RemoteSession),
    (LibraryTurn, RemoteTurn),
    (OpenTurn, OpenRemoteTurn),
    (SessionState, RemoteState),
    (SharedState, RemoteState),
    (SessionArtifacts, RemoteArtifacts),
    (SessionFacts, RemoteFacts),
    (Records, RemoteRecords),
    (Memories, RemoteMemories),
)
MISSING: Final[dict[str, set[str]]] = {
    "Holdfast": {
        *(
            "add_hook",
            "artifacts",
            "consolidation",
            "index",
            "is_open",
            "on_expire",
            "prune",
            "store",
        ),
        *("sweep", "user_artifacts"),
    },
    "SessionHandle": {"verify"},
    "OpenTurn": {"explain", "explanation", "interrupted", "load_state"},
    "SharedState": {"clear", "version"},
    "SessionArtifacts": {"open"},
    "Memories": {"forget_source", "page", "settled"},
}
"""Members of the library that `holdfast.connect` does not have."""
ADDED: Final = {("RemoteMemories", "list")}
OTHER_PARAMETERS: Final[dict[str, set[str]]] = {
    "Holdfast.create": {"greet"},
    "Holdfast.erase": {"tokens"},
    "Holdfast.handle": {"model"},
    "SessionHandle.send": {"idempotency_key"},
    "SessionArtifacts.load": {"start", "stop"},
    "SessionFacts.__call__": {"budget", "options"},
    "Memories.forget": {"owners"},
    "Memories.get": {"owners"},
    "Memories.recall": {
        "filters",
        "limit",
        "min_score",
        "now",
        "owners",
        "patience",
        "session",
        "signal",
        "tag",
        "type",
    },
    "Memories.review": {"owners"},
    "Memories.update": {"owners", "sources"},
}
"""Parameters that only one of the two has."""
FREE: Final = {"SessionHandle.begin_turn"}
"""Methods that pass all parameters on to another one, whose parameters are compared."""


def list_members(cls: type) -> set[str]:
    """Return the names of the public methods and properties of a class that are not internal."""
    own = {name for base in cls.__mro__ if base.__module__.startswith("holdfast") for name in vars(base)}
    internal = INTERNAL.get(cls.__name__, frozenset()) | INTERNAL.get(cls.__name__.removeprefix("Remote"), frozenset())
    return {name for name in own if name == "__call__" or name[0] != "_"} - internal


@pytest.mark.parametrize(("local", "remote"), PAIRS)
def test_both_have_the_same_members(local: type, remote: type) -> None:
    """Those that are missing are listed above."""
    here, there = list_members(local), list_members(remote)
    functions = [one for one in vars(remote).values() if inspect.isfunction(one)]
    attributes = {name for one in functions for name in one.__code__.co_names}  # set by its methods
    assert here - there - attributes == MISSING.get(local.__name__, set())
    assert {(remote.__name__, name) for name in there - here} <= ADDED


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_both_have_the_same_parameters(here: type, there: type) -> None:
    """Names, order and defaults, except that a `user_id` of None means the user of the connection."""
    for name in list_members(here) & list_members(there):
        method = f"{here.__name__}.{name}"
        if method in FREE or not inspect.isroutine(getattr(here, name, None)):
            continue
        ours, theirs = (inspect.signature(getattr(cls, name)).parameters for cls in (here, there))
        assert ours.keys() ^ theirs.keys() == OTHER_PARAMETERS.get(method, set()), method
        shared = [one for one in ours if one in theirs]
        assert shared == [one for one in theirs if one in ours], method
        for one in shared:
            if one != "user_id":
                assert (ours[one].default, ours[one].kind) == (theirs[one].default, theirs[one].kind), (method, one)
