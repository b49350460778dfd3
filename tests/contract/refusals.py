"""The contract of a store, what cannot be: it is refused by its parameter's name, before anything is looked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from holdfast.domain.artifact import UserRef
from holdfast.domain.session import SessionRef
from holdfast.errors import HoldfastError
from holdfast.limits import ID_BYTES, PAGE
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession, SessionPatch

from .kit import REF
from .once import REFUSED, once

NOBODY = SessionRef("ada", "")
LONG = "x" * (ID_BYTES + 1)

Call = Callable[[Store], Awaitable[object]]
OF_SESSIONS: dict[str, Call] = {
    "get": lambda store: store.get(NOBODY),
    "find": lambda store: store.find(""),
    "update": lambda store: store.update(NOBODY, SessionPatch(), timestamp=1),
    "remove": lambda store: store.remove(NOBODY),
    "append": lambda store: store.append(NOBODY, Append(timestamp=1)),
    "create": lambda store: store.create(NewSession(id="", user_id="ada", timestamp=1)),
    "want": lambda store: store.want(NOBODY, "h"),
    "annotate": lambda store: store.annotate(NOBODY, 0, pinned=True),
    "erase": lambda store: store.erase(NOBODY, 0),
    "rate": lambda store: store.rate(NOBODY, {0: 1.0}),
    "drop_compaction": lambda store: store.drop_compaction(NOBODY, 1, timestamp=1),
    "entries": lambda store: store.entries(NOBODY),
    "window": lambda store: store.window(NOBODY, "v"),
    "compactions": lambda store: store.compactions(NOBODY),
    "calls": lambda store: store.calls(NOBODY),
    "prompt_texts": lambda store: store.prompt_texts(NOBODY),
    "touch": lambda store: store.touch(NOBODY, timestamp=1),
    "media": lambda store: store.media(NOBODY, [b"h" * 32]),
    "records": lambda store: store.records(NOBODY, [], now=1),
    "list_records": lambda store: store.list_records(NOBODY, ("a",), now=1),
    "record_namespaces": lambda store: store.record_namespaces(NOBODY, now=1),
    "searchable_records": lambda store: store.searchable_records(NOBODY, now=1),
    "change_records": lambda store: store.change_records(NOBODY, [], timestamp=1),
    "drop_records": lambda store: store.drop_records(NOBODY),
}
"""A session without an id."""
OF_IDS: dict[str, tuple[Call, str]] = {
    "endings_of": (lambda store: store.endings_of(""), "user_id"),
    "settle": (lambda store: store.settle(""), "ending_id"),
    "forget_ending": (lambda store: store.forget_ending(""), "ending_id"),
    "state": (lambda store: store.state(""), "user_id"),
    "change_state": (lambda store: store.change_state("", {}, timestamp=1), "user_id"),
    "drop_state": (lambda store: store.drop_state(""), "user_id"),
    "records": (lambda store: store.records(UserRef(""), [], now=1), "user_id"),
    "drop_records": (lambda store: store.drop_records(UserRef("")), "user_id"),
    "revoke_key": (lambda store: store.revoke_key("", timestamp=1), "key_id"),
    "use_key": (lambda store: store.use_key(LONG, timestamp=1), "key_id"),
    "artifacts": (lambda store: store.artifacts(NOBODY), "session_id"),
    "artifact": (lambda store: store.artifact(REF, "user:a.txt"), "name"),
    "artifact_versions": (lambda store: store.artifact_versions(REF, "user:a.txt"), "name"),
    "blobs_in_use": (lambda store: store.blobs_in_use(["A"]), "blob"),
    "put_blob": (lambda store: store.put_blob("A", 0, b"x", timestamp=1), "blob"),
    "blob": (lambda store: store.blob("A", 0), "blob"),
    "delete_blobs": (lambda store: store.delete_blobs(["A"]), "blob"),
}
"""Something else that has no name."""
OF_PAGES: dict[str, Callable[[Store, int], Awaitable[object]]] = {
    "list": lambda store, limit: store.list(limit=limit),
    "calls": lambda store, limit: store.calls(REF, limit=limit),
    "artifacts": lambda store, limit: store.artifacts(REF, limit=limit),
    "artifact_versions": lambda store, limit: store.artifact_versions(REF, "a.txt", limit=limit),
    "list_records": lambda store, limit: store.list_records(UserRef("ada"), ("a",), now=1, limit=limit),
    "record_namespaces": lambda store, limit: store.record_namespaces(UserRef("ada"), now=1, limit=limit),
}


async def _find_refused(call: Awaitable[object]) -> str | None:
    """The parameter of the refusal."""
    with pytest.raises(HoldfastError) as refused:
        await call
    return getattr(refused.value, "param", None)


@once(REFUSED)
async def test_a_session_without_an_id_is_refused(store: Store) -> None:
    """By every method, and not as one that is not there."""
    assert {name: await _find_refused(call(store)) for name, call in OF_SESSIONS.items()} == dict.fromkeys(
        OF_SESSIONS, "session_id"
    )


@once(REFUSED)
async def test_empty_names_are_refused(store: Store) -> None:
    """Users, keys, endings, artifacts and contents."""
    found = {name: await _find_refused(call(store)) for name, (call, _) in OF_IDS.items()}
    assert found == {name: param for name, (_, param) in OF_IDS.items()}


@once(REFUSED)
async def test_page_sizes_of_zero_or_above_the_limit_are_refused(store: Store) -> None:
    """By everything that is read in pages."""
    for limit in (0, PAGE + 1):
        found = {name: await _find_refused(call(store, limit)) for name, call in OF_PAGES.items()}
        assert found == dict.fromkeys(OF_PAGES, "limit")
