"""Merging a new memory with existing ones; a merge never raises trust."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json
from msgspec.structs import replace

from holdfast.domain.memory import ORIGINS, REVIEWED_ORIGINS, TRUST, Memory, MemorySource, Origin, Owner
from holdfast.limits import MEMORY_BYTES, MEMORY_TAGS
from holdfast.memory.similarity import Decision, decide_merge

NOW = 1_700_000_000_000
ANN = Owner("user", "ann")


def memory(content: str = "Ada likes tea", *, origin: Origin = "user", number: int = 0, **fields: Any) -> Memory:
    source = MemorySource(session_id=f"s-{origin}", user_id="ann", seqs=(number,), origin=origin)
    given: dict[str, Any] = {
        "id": f"mem_{number:032x}",
        "owner": ANN,
        "status": "quarantined" if origin in REVIEWED_ORIGINS else "active",
        "trust": TRUST[origin],
        "sources": (source,),
        "created_at": NOW,
        "updated_at": NOW,
        **fields,
    }
    return Memory(content=content, origin=origin, number=number, **given)


def decide(new: Memory, *known: Memory) -> Decision:
    return decide_merge(replace(new, id="mem_" + "f" * 32), known, NOW + 5)


def test_a_less_trusted_duplicate_changes_nothing() -> None:
    old = memory(number=1)
    made = decide(memory(origin="tool", tags=("urgent",), importance=1.0), old)
    assert made == Decision("merged", old, (), ())


def test_a_quarantined_duplicate_does_not_change_an_accepted_memory() -> None:
    old = memory(number=1, origin="tool", status="active", reviewed_at=NOW)
    made = decide(memory(origin="tool", status="quarantined", tags=("send money",), importance=1.0), old)
    assert (made.outcome, made.memory, made.put) == ("merged", old, ())


def test_a_more_trusted_duplicate_supersedes_with_its_own_sources() -> None:
    old = memory(number=1, origin="tool", tags=("planted",))
    new = memory(origin="user")
    made = decide(new, old)
    assert made.outcome == "superseded"
    assert made.memory.sources == new.sources
    assert made.memory.tags == ()
    assert [(one.id, one.status, one.superseded_by) for one in made.put[1:]] == [(old.id, "superseded", made.memory.id)]


def test_a_rejected_memory_can_be_restored_by_the_user_but_not_by_a_tool() -> None:
    old = memory(number=1, origin="tool", status="rejected", reviewed_at=NOW)
    assert decide(memory(origin="web"), old) == Decision("merged", old, (), ())
    assert decide(memory(), old).outcome == "new"


def test_a_rejected_memory_is_not_restored_by_the_model_or_another_validity() -> None:
    old = memory(number=1, origin="tool", status="rejected", reviewed_at=NOW)
    for new in (memory(origin="assistant"), memory(origin="summary"), memory(origin="tool", valid_until=NOW + 99)):
        assert decide(new, old) == Decision("merged", old, (), ())


def test_a_quarantined_memory_stays_quarantined_when_the_model_repeats_it() -> None:
    old = memory(number=1, origin="tool", tags=("planted",))
    made = decide(memory(origin="assistant"), old)
    assert (made.outcome, made.memory.id, made.memory.status) == ("merged", old.id, "quarantined")
    assert (made.memory.origin, made.memory.trust) == ("tool", old.trust)
    beside = memory(number=2, origin="assistant")
    assert [one.id for one in decide(memory(origin="assistant"), old, beside).put] == [beside.id]


def test_a_quarantined_duplicate_of_an_active_memory_is_not_stored() -> None:
    old = memory(number=1, origin="tool", status="active", reviewed_at=NOW)
    assert decide(memory(origin="assistant", status="quarantined"), old) == Decision("merged", old, (), ())


NAMED: dict[str, tuple[Memory, Memory]] = {
    "a tool, the user's": (memory(origin="tool"), memory("The sky", number=1)),
    "the model, the user's": (memory(origin="assistant"), memory("The sky", number=1)),
    "the model, what is held": (memory(origin="assistant"), memory("The sky", number=1, origin="tool")),
    "a tool, what was accepted": (memory(origin="tool"), memory("The sky", number=1, origin="tool", status="active")),
    "what is held, the model's own": (
        memory(origin="assistant", status="quarantined"),
        memory("The sky", number=1, origin="assistant"),
    ),
    "the user, what was rejected": (memory(), memory("The sky", number=1, origin="tool", status="rejected")),
}


@pytest.mark.parametrize("who", NAMED)
def test_supersedes_is_ignored_if_a_review_must_decide(who: str) -> None:
    new, old = NAMED[who]
    made = decide(replace(new, supersedes=(old.id,)), old)
    assert made.outcome == "new"
    assert made.memory.supersedes == ()
    assert [one.id for one in made.put] == [made.memory.id]


def test_a_tool_cannot_replace_a_value_of_the_user() -> None:
    old = memory("My favourite colour is blue", number=1)
    made = decide(memory("My favourite colour is green", origin="tool"), old)
    assert made.outcome == "new"
    assert made.memory.status == "quarantined"


def test_a_memory_with_an_expiry_is_not_superseded_automatically() -> None:
    old = memory("The deadline for it is Monday", number=1, valid_until=NOW + 99)
    assert decide(memory("The deadline for it is Friday"), old).outcome == "new"
    past = memory(number=1, valid_until=NOW)
    assert decide(memory(), past).outcome == "new"


def test_a_merge_stays_within_the_limits() -> None:
    old = memory(number=1, tags=tuple(f"a{n}" for n in range(MEMORY_TAGS)), metadata={"a": "x" * 20_000})
    made = decide(memory(tags=tuple(f"b{n}" for n in range(MEMORY_TAGS)), metadata={"b": "x" * 20_000}), old)
    assert made.outcome == "merged"
    assert len(made.memory.tags) == MEMORY_TAGS
    assert len(json.encode(made.memory)) <= MEMORY_BYTES


_texts = st.sampled_from(
    ["Ada likes tea", "ada likes tea.", "Ada does not like tea", "My email is a@x.example", "My email is b@x.example"]
)
_said = st.lists(st.tuples(_texts, st.sampled_from(ORIGINS)), min_size=1, max_size=12)


@given(_said)
def test_trust_never_exceeds_the_least_trusted_source(said: list[tuple[str, Origin]]) -> None:
    kept: dict[str, Memory] = {}
    for number, (text, origin) in enumerate(said, 1):
        new = memory(text, origin=origin, number=number)
        made = decide_merge(new, list(kept.values()), NOW + number)
        kept |= {one.id: one for one in made.put}
    for one in kept.values():
        assert one.trust <= min(TRUST[source.origin] for source in one.sources)
        assert one.trust == TRUST[one.origin]
        assert (one.status == "quarantined") <= (one.origin in REVIEWED_ORIGINS)
        if one.status == "active":
            assert one.origin not in REVIEWED_ORIGINS


@given(_said)
def test_only_the_user_changes_their_memories_or_reviewed_ones(said: list[tuple[str, Origin]]) -> None:
    texts = ("Ada likes tea", "My email is a@x.example", "My email is b@x.example")
    mine = [memory(text, number=number) for number, text in enumerate(texts[:2], 1)]
    rejected = memory(texts[2], origin="web", number=3, status="rejected", reviewed_at=NOW)
    kept = {one.id: one for one in (*mine, rejected)}
    for number, (text, origin) in enumerate(said, 4):
        if origin != "user":
            new = memory(text, origin=origin, number=number, tags=("x",), importance=1.0, type="procedural")
            made = decide_merge(replace(new, supersedes=tuple(kept)), list(kept.values()), NOW + number)
            kept |= {one.id: one for one in made.put}
    assert [kept[one.id] for one in (*mine, rejected)] == [*mine, rejected]
    assert not [one for one in kept.values() if one.status == "active" and one.content == rejected.content]


@given(_said)
def test_user_memories_survive_statements_of_other_origins(said: list[tuple[str, Origin]]) -> None:
    kept: dict[str, Memory] = {}
    for number, (text, origin) in enumerate([("Ada likes tea", "user"), *said], 1):
        made = decide_merge(memory(text, origin=origin, number=number), list(kept.values()), NOW + number)
        kept |= {one.id: one for one in made.put}
    assert any(one.status == "active" and one.content.startswith("Ada likes") for one in kept.values())
