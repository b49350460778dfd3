"""`holdfast.connect` has the interface of the library, method by method, except for what is listed here and in docs/connect.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Final

import pytest

from scripts.public_names import python_names

PAIRS: Final = {
    "Holdfast": "RemoteHoldfast",
    "SessionHandle": "RemoteSession",
    "LibraryTurn": "RemoteTurn",
    "OpenTurn": "OpenRemoteTurn",
    "SessionState": "RemoteState",
    "SharedState": "RemoteState",
    "SessionArtifacts": "RemoteArtifacts",
    "SessionFacts": "RemoteFacts",
    "Records": "RemoteRecords",
    "Memories": "RemoteMemories",
}
MISSING: Final[dict[str, set[str]]] = {
    "Holdfast": {
        *(
            "add_hook",
            "artifacts",
            "clock",
            "consolidation",
            "index",
            "is_open",
            "on_expire",
            "prune",
            "roster",
            "store",
        ),
        *("sweep", "tenant", "url", "user_artifacts", "workspaces"),
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
    "Holdfast.sessions": {"more"},
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
    "Memories.remember": {"held"},
    "Memories.review": {"owners"},
    "Memories.update": {"owners", "sources"},
}
"""Parameters that only one of the two has."""
OTHER_DEFAULTS: Final = {("Holdfast.sessions", "limit")}
FREE: Final = {"SessionHandle.begin_turn"}
"""Methods that pass all parameters on to another one, whose parameters are compared."""
PAGE: Final = (Path(__file__).parents[2] / "docs" / "connect.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("local", "remote"), PAIRS.items())
def test_both_have_the_same_members(local: str, remote: str) -> None:
    """Those that are missing are listed above."""
    classes = python_names.list_interfaces()
    here, there = (set(python_names.list_members(classes[name])) for name in (local, remote))
    assert here - there == MISSING.get(local, set())
    assert {(remote, name) for name in there - here} <= ADDED


@pytest.mark.parametrize(("local", "remote"), PAIRS.items())
def test_both_have_the_same_parameters(local: str, remote: str) -> None:
    """Names, order and defaults, except that a `user_id` of None means the user of the connection."""
    classes = python_names.list_interfaces()
    here, there = classes[local], classes[remote]
    for name in set(python_names.list_members(here)) & set(python_names.list_members(there)):
        method = f"{local}.{name}"
        if method in FREE or not inspect.isroutine(getattr(here, name, None)):
            continue
        ours, theirs = (inspect.signature(getattr(cls, name)).parameters for cls in (here, there))
        assert ours.keys() ^ theirs.keys() == OTHER_PARAMETERS.get(method, set()), method
        shared = [one for one in ours if one in theirs]
        assert shared == [one for one in theirs if one in ours], method
        for one in shared:
            if one != "user_id" and (method, one) not in OTHER_DEFAULTS:
                assert (ours[one].default, ours[one].kind) == (theirs[one].default, theirs[one].kind), (method, one)


def test_the_page_names_what_is_missing() -> None:
    """Each member that only the library has."""
    named = {
        name
        for code in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))
        for name in re.findall(r"\w+", code)
    }
    assert {name for members in MISSING.values() for name in members} <= named
