"""What every index of a database refuses before it asks the database: the last that is allowed, the first that is not, and the parameter that is named."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import HoldfastError, InvalidRequest, StoreClosed
from holdfast.limits import ID_BYTES
from holdfast.recall.base import Filters, Index, Lookup, Source, Space, Vectored
from holdfast.stores.indexes import open_index
from holdfast.stores.logic.index import NAME_BYTES, NOTE_BYTES
from tests.contract.index_kit import SOURCE, SPACE, batch, digest_of, document, vector

LONG, LONGEST = "x" * (ID_BYTES + 1), "x" * ID_BYTES
LONGEST_NAME = "x" * NAME_BYTES
KIND: Any = "else"
FAR = 1 << 62

InSpace = Callable[[Index, Space], Awaitable[object]]
OfSource = Callable[[Index, str], Awaitable[object]]
Call = Callable[[Index, Any], Awaitable[object]]

IN_SPACES: dict[str, InSpace] = {
    "progress": lambda index, space: index.progress(space, "s"),
    "write": lambda index, space: index.write(space, batch()),
    "held": lambda index, space: index.list_digests(space, "s"),
    "drop": lambda index, space: index.drop(space, "s"),
    "drop_space": lambda index, space: index.drop_space(space),
    "sources": lambda index, space: index.sources(space=space),
    "lookup": lambda index, space: index.lookup(Lookup(space=space)),
    "at": lambda index, space: index.at(space, "s", [0]),
    "near": lambda index, space: index.near(Lookup(space=space), []),
    "pending": lambda index, space: index.pending("m", space=space),
    "put_vectors": lambda index, space: index.put_vectors(space, SOURCE, "m", []),
    "vectors": lambda index, space: index.vectors("m", [], space=space),
    "similar": lambda index, space: index.similar(Lookup(space=space), "m", vector(1)),
    "status": lambda index, space: index.status(space),
}
OF_SOURCES: dict[str, OfSource] = {
    "progress": lambda index, name: index.progress(SPACE, name),
    "write": lambda index, name: index.write(SPACE, batch(source=Source(name, "i"))),
    "held": lambda index, name: index.list_digests(SPACE, name),
    "drop": lambda index, name: index.drop(SPACE, name),
    "at": lambda index, name: index.at(SPACE, name, []),
    "put_vectors": lambda index, name: index.put_vectors(SPACE, Source(name, "i"), "m", []),
}
OF_MODELS: dict[str, Call] = {
    "pending": lambda index, model: index.pending(model),
    "put_vectors": lambda index, model: index.put_vectors(SPACE, SOURCE, model, []),
    "vectors": lambda index, model: index.vectors(model, [], space=SPACE),
    "similar": lambda index, model: index.similar(Lookup(space=SPACE), model, vector(1)),
}
OF_NOTES: dict[str, Call] = {
    "note": lambda index, name: index.note(name),
    "keep_note": lambda index, name: index.keep_note(name, b"x"),
}
OF_PAGES: dict[str, Call] = {
    "held": lambda index, limit: index.list_digests(SPACE, "s", limit=limit),
    "sources": lambda index, limit: index.sources(limit=limit),
    "pending": lambda index, limit: index.pending("m", limit=limit),
}
LOOKUPS: dict[str, Call] = {
    "lookup": lambda index, asked: index.lookup(asked),
    "near": lambda index, asked: index.near(asked, []),
    "similar": lambda index, asked: index.similar(asked, "m", vector(1)),
}
ASKED: tuple[tuple[dict[str, Any], str | None], ...] = (
    ({"channel": "all"}, "channel"),
    ({"limit": 0}, "limit"),
    ({"limit": 1}, None),
    *(({"filters": Filters(since=at)}, None) for at in (-FAR, FAR)),
    *(({"filters": Filters(until=at)}, None) for at in (-FAR, FAR)),
    *(({"filters": Filters(since=at)}, "since") for at in (-FAR - 1, FAR + 1)),
    *(({"filters": Filters(until=at)}, "until") for at in (-FAR - 1, FAR + 1)),
)
DOCUMENTS: tuple[tuple[dict[str, Any], str | None], ...] = (
    ({"channel": "all"}, "channel"),
    ({"place": -1}, "place"),
    ({"place": 1 << 24}, "place"),
    ({"place": (1 << 24) - 1}, None),
    ({"seq": -1}, "place"),
    ({"seq": FAR}, "place"),
    ({"seq": FAR - 1}, None),
    ({"digest": bytes(15)}, "digest"),
    ({"digest": bytes(17)}, "digest"),
    ({"traits": -1}, "traits"),
    ({"traits": 1 << 31}, "traits"),
    ({"traits": (1 << 31) - 1}, None),
    ({"terms": {"a": 1, "b": 0}}, "terms"),
    ({"role": ""}, "role"),
    ({"role": LONG}, "role"),
    ({"agent": LONG}, "agent"),
    ({"agent": LONGEST}, None),
    ({"name": LONGEST_NAME + "x"}, "name"),
    ({"name": LONGEST_NAME}, None),
    ({"agent": "", "name": ""}, None),
)


@pytest.fixture
async def index() -> AsyncIterator[Index]:
    """One in memory: what is refused is the same wherever an index lies."""
    index = await open_index("sqlite://:memory:", tenant="acme")
    yield index
    await index.close()


async def _find_refused(call: Awaitable[object]) -> str | None:
    """The parameter of the refusal; None: it was done."""
    try:
        await call
    except HoldfastError as exc:
        return getattr(exc, "param", "")
    return None


async def _each(calls: dict[str, Any], index: Index, given: object) -> dict[str | None, set[str]]:
    """The methods by the parameter that each names when it is given this."""
    found: dict[str | None, set[str]] = {}
    for name, call in calls.items():
        found.setdefault(await _find_refused(call(index, given)), set()).add(name)
    return found


@pytest.mark.parametrize("space", [Space(KIND, "ann"), Space("talk", LONG)], ids=["kind", "name"])
async def test_invalid_spaces_are_rejected(index: Index, space: Space) -> None:
    """By every method, also where there is nothing yet: an owner's name has an end, and kinds are few."""
    assert await _each(IN_SPACES, index, space) == {"space": {*IN_SPACES}}


async def test_names_have_a_maximum_length(index: Index) -> None:
    """Of owners, sources, models and notes; the longest is taken."""
    assert await _each(IN_SPACES, index, Space("talk", LONGEST)) == {None: {*IN_SPACES}}
    for calls, param in ((OF_SOURCES, "source"), (OF_MODELS, "model"), (OF_NOTES, "name")):
        assert await _each(calls, index, LONG) == {param: {*calls}}
        assert await _each(calls, index, LONGEST) == {None: {*calls}}
    assert await _find_refused(index.write(SPACE, batch(source=Source("s", LONG)))) == "identity"


async def test_models_and_notes_have_names(index: Index) -> None:
    """A source need not have one: memories are."""
    assert await _each(OF_MODELS, index, "") == {"model": {*OF_MODELS}}
    assert await _each(OF_NOTES, index, "") == {"name": {*OF_NOTES}}
    assert await _each(OF_SOURCES, index, "") == {None: {*OF_SOURCES}}


async def test_an_empty_page_size_is_rejected(index: Index) -> None:
    """A size of one is accepted."""
    assert await _each(OF_PAGES, index, 0) == {"limit": {*OF_PAGES}}
    for limit in (1, 1_000_000):
        assert await _each(OF_PAGES, index, limit) == {None: {*OF_PAGES}}


@pytest.mark.parametrize(("asked", "param"), ASKED, ids=str)
async def test_invalid_lookups_are_rejected(index: Index, asked: dict[str, Any], param: str | None) -> None:
    """By every lookup."""
    assert await _each(LOOKUPS, index, Lookup(space=SPACE, **asked)) == {param: {*LOOKUPS}}


@pytest.mark.parametrize(("fields", "param"), DOCUMENTS, ids=lambda one: str(one)[:30])
async def test_invalid_documents_are_rejected_by_field(index: Index, fields: dict[str, Any], param: str | None) -> None:
    """The last that it can be is taken."""
    assert (
        await _find_refused(index.write(SPACE, batch(replace(document(0, "a"), **fields), next_seq=1, talk=1))) == param
    )


async def test_invalid_batches_are_rejected_by_field(index: Index) -> None:
    """Two documents of one number or place; places of two channels are two. And the progress of another source."""
    one = document(0, "a")
    assert await _find_refused(index.write(SPACE, batch(one, document(0, "b", place=1)))) == "put"
    assert await _find_refused(index.write(SPACE, batch(one, document(1, "b", place=0)))) == "put"
    assert await _find_refused(index.write(SPACE, replace(batch(one), source=Source("s1", "other")))) == "progress"
    assert await _find_refused(index.write(SPACE, batch(one, document(1, "b", place=0, channel="tool")))) is None


async def test_invalid_vectors_are_rejected_by_field(index: Index) -> None:
    """Numbers of four bytes, at least one; and all of a call have as many."""
    await index.write(SPACE, batch(document(0, "a"), document(1, "b")))
    for wrong in ((b"",), (b"12345",), (vector(1), vector(1, 0))):
        vectors = [Vectored(at, digest_of("ab"[at]), one) for at, one in enumerate(wrong)]
        assert await _find_refused(index.put_vectors(SPACE, SOURCE, "m", vectors)) == "vectors"
    for wrong_one in (b"", b"12345"):
        assert await _find_refused(index.similar(Lookup(space=SPACE), "m", wrong_one)) == "vectors"


async def test_notes_have_a_maximum_length(index: Index) -> None:
    """A note of the maximum length is stored completely."""
    assert await _find_refused(index.keep_note("n", bytes(NOTE_BYTES + 1))) == "data"
    await index.keep_note("n", bytes(NOTE_BYTES))
    assert await index.note("n") == bytes(NOTE_BYTES)


async def test_a_tenant_has_a_name(index: Index) -> None:
    """Where an index is opened, and where a handle of another tenant is made."""
    for tenant in ("", LONG):
        assert await _find_refused(open_index("sqlite://:memory:", tenant=tenant)) == "tenant"
        with pytest.raises(InvalidRequest) as refused:
            index.for_tenant(tenant)
        assert refused.value.param == "tenant"


async def test_every_method_of_a_closed_index_reports_it(index: Index) -> None:
    """Reads and writes alike; a handle of another tenant closes alone, and for good."""
    other = index.for_tenant("other")
    await other.close()
    for call in (other.status(), other.note("n"), other.drop_space(SPACE), other.clear(), other.keep_note("n", b"x")):
        with pytest.raises(StoreClosed):
            await call
    await index.keep_note("n", b"x")
    assert await index.note("n") == b"x"
