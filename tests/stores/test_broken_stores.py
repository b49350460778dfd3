"""The contract notices a store that is wrong: each of these breaks one promise, and the check that is named with it fails.

The same check passes on the wrapper without the break, so the break is what it notices.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.session import SessionRef
from holdfast.errors import HoldfastError, SessionBusy, StaleSession
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.wrapper import StoreWrapper
from tests.contract import CHECKS

Break = Callable[..., Any]
"""Called instead of a method, with the inner store and the method's arguments."""
NOTICED = (AssertionError, pytest.fail.Exception, HoldfastError, ExceptionGroup)
"""How a check fails; another error would be a mistake in the break."""


class Broken(StoreWrapper):
    """A store with other methods in place of some of its own."""

    def __init__(self, inner: Store, breaks: dict[str, Break]) -> None:
        super().__init__(inner)
        self._breaks = breaks
        for method, break_ in breaks.items():
            setattr(self, method, partial(break_, inner))

    def wrap(self, inner: Store) -> Broken:
        return Broken(inner, self._breaks)

    async def close(self) -> None:
        await self.inner.close()


async def change(answer: Awaitable[Any], how: Callable[[Any], Any]) -> Any:
    return how(await answer)


def change_write(**changed: Any) -> Break:
    """Leave out, or change, a part of each append."""
    return lambda inner, ref, write: inner.append(ref, replace(write, **changed))


def change_call(method: str, **changed: Any) -> Break:
    """Call the method with other options."""
    return lambda inner, *args, **options: getattr(inner, method)(*args, **{**options, **changed})


async def acknowledge_only(inner: Store, ref: SessionRef, write: Append) -> Appended:
    entries = [one for one in write.entries if not one.message.text.endswith("7")]
    return await inner.append(ref, replace(write, entries=entries))


async def write_one_by_one(inner: Store, ref: SessionRef, write: Append) -> Appended:
    for entry in write.entries[:-1]:
        await inner.append(ref, Append(entries=[entry], timestamp=write.timestamp))
    return await inner.append(ref, replace(write, entries=write.entries[-1:]))


async def write_anyway(inner: Store, ref: SessionRef, write: Append) -> Appended:
    try:
        return await inner.append(ref, write)
    except StaleSession:
        return await inner.append(ref, replace(write, expect=None))


async def truncate(inner: Store, ref: SessionRef, write: Append) -> Appended:
    entries = [replace(one, message=one.message.evolve(content=one.message.text[:65_535])) for one in write.entries]
    return await inner.append(ref, replace(write, entries=entries))


async def save_any_view(inner: Store, ref: SessionRef, write: Append) -> Appended:
    views = {key: replace(view, built_at=None) for key, view in (write.views or {}).items()}
    return await inner.append(ref, replace(write, views=views))


async def take_over(inner: Store, ref: SessionRef, write: Append) -> Appended:
    try:
        return await inner.append(ref, write)
    except SessionBusy:
        held = (await inner.get(ref)).claim
        await inner.append(ref, Append(timestamp=write.timestamp, release=held.holder if held else None))
        return await inner.append(ref, write)


async def lose_update(inner: Store, user_id: str | None, delta: dict[str, Any], **options: Any) -> Any:
    held = (await inner.state(user_id)).values or {}
    plain = {key: held.get(key, 0) + one.by if hasattr(one, "by") else one for key, one in delta.items()}
    return await inner.change_state(user_id, plain, **options)


async def let_two_hold(inner: Store, name: str, holder: str, **times: int) -> bool:
    return await inner.lease(name, holder, **times) or holder == "two"


async def count_only(inner: Store, owner: Any) -> int:
    return (await inner.memories(owner)).total


async def drop_nothing(inner: Store, scope: Any, *args: Any) -> Sequence[Any]:
    return (await inner.artifacts(scope)).artifacts


BROKEN: dict[str, tuple[str, Break, str]] = {
    "acknowledges without writing": ("append", acknowledge_only, "test_reads_see_acknowledged_writes"),
    "writes one entry after the other": ("append", write_one_by_one, "test_a_write_is_all_or_nothing"),
    "writes a part when its caller gives up": (
        *("append", write_one_by_one),
        "test_a_write_cancelled_at_any_await_is_complete_or_absent",
    ),
    "lets another writer in between": ("append", write_one_by_one, "test_fifty_writers_on_one_session"),
    "writes in spite of another version": ("append", write_anyway, "test_a_stale_expect_writes_nothing"),
    "has two winners": (
        *("append", write_anyway),
        "test_one_of_several_writers_with_the_same_expectation_wins",
    ),
    "forgets idempotency keys": ("append", change_write(idempotency_key=None), "test_a_key_writes_once"),
    "compares no fingerprints": ("append", change_write(fingerprint=b""), "test_each_of_many_keys_writes_once"),
    "writes to a new session of the name": (
        *("append", change_write(identity=None)),
        "test_writes_do_not_reach_a_new_session_of_the_same_name",
    ),
    "saves stale views": ("append", save_any_view, "test_a_view_built_before_a_change_is_not_saved"),
    "cuts long texts": ("append", truncate, "test_a_large_message_is_stored"),
    "keeps no contents": ("append", change_write(media={}), "test_media_are_read_back_unchanged"),
    "lets a claim be taken": ("append", take_over, "test_one_of_several_claimants_wins"),
    "ignores the time to live": (
        *("append", change_write(ttl=None)),
        "test_a_write_to_an_expired_session_is_refused_when_asked_for",
    ),
    "loses an update": ("change_state", lose_update, "test_writers_of_a_scope_lose_nothing"),
    "gives a lease to two": ("lease", let_two_hold, "test_a_lease_has_one_holder"),
    "ignores the tenant": ("for_tenant", lambda inner, tenant: inner, "test_no_method_reaches_another_tenants_data"),
    "ignores the user": ("list", change_call("list", user_id=None), "test_identifiers_are_compared_by_bytes"),
    "strips names": (
        *("get", lambda inner, ref: inner.get(SessionRef(ref.user_id.strip(), ref.id.strip()))),
        "test_identifiers_are_compared_by_bytes",
    ),
    "lists in another order": (
        *(
            "list",
            lambda inner, **by: change(inner.list(**by), lambda page: replace(page, sessions=page.sessions[::-1])),
        ),
        "test_lists_are_in_order_of_time_then_name",
    ),
    "begins each page at the front": (
        "list",
        change_call("list", after=None),
        "test_sessions_are_listed_in_byte_order",
    ),
    "loses the end of a page": (
        *("entries", lambda inner, ref, **by: change(inner.entries(ref, **by), lambda found: found[:2])),
        "test_pages_cover_the_whole_log",
    ),
    "returns retired entries": (
        "entries",
        change_call("entries", retired=True),
        "test_retired_entries_stay_in_the_log",
    ),
    "returns notes": (
        *("entries", change_call("entries", notes=True)),
        "test_a_note_is_read_back_only_where_notes_are_asked_for",
    ),
    "keeps erased contents": (
        *("erase", lambda inner, ref, seq, **_: inner.annotate(ref, seq, pinned=False)),
        "test_erasing_keeps_seq_and_digest",
    ),
    "keeps dropped memories": ("drop_memories", count_only, "test_a_dropped_owner_equals_one_without_writes"),
    "keeps dropped artifacts": ("drop_artifacts", drop_nothing, "test_one_version_can_be_deleted"),
    "returns expired records": (
        *("list_records", change_call("list_records", now=0)),
        "test_expired_records_are_gone",
    ),
    "accepts revoked keys": (
        *("get_key", lambda inner, by: change(inner.get_key(by), lambda key: key and replace(key, revoked_at=None))),
        "test_a_key_is_revoked_permanently",
    ),
}
"""What is wrong, in which method, and a check that notices it."""


async def run_check(name: str, breaks: dict[str, Break], file: Path) -> None:
    """Run a check of the contract on a store in a file. In memory, most writes are done at once, so they cannot be cancelled."""
    inner = await open_store(f"sqlite:///{file}", tenant="acme")
    store: Any = Broken(inner, breaks)
    given = {"store": store, "openings": [store], "what": "append", "said": ["a"], "scope": "ann"}
    check: Any = CHECKS[name]
    try:
        await check(**{fixture: given[fixture] for fixture in inspect.signature(check).parameters})
    finally:
        await inner.close()


@pytest.mark.parametrize("wrong", BROKEN)
async def test_a_wrong_store_is_noticed(wrong: str, tmp_path: Path) -> None:
    method, break_, check = BROKEN[wrong]
    await run_check(check, {}, tmp_path / "sound.db")
    with pytest.raises(NOTICED):
        await run_check(check, {method: break_}, tmp_path / "broken.db")
