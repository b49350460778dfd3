"""What every store refuses before it begins: the last that is allowed, the first that is not, and the parameter that is named."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.domain.artifact import NewArtifact, UserRef
from holdfast.domain.history import OldEntry, Past
from holdfast.domain.memory import MemoryDelta, MemorySource, Owner
from holdfast.domain.messages import Message
from holdfast.domain.session import Claim, Ending, ModelCall, NewEntry, SessionRef
from holdfast.errors import HoldfastError
from holdfast.limits import (
    ARTIFACT_METADATA_BYTES,
    CALL_BUILD_BYTES,
    COMPACTION_BYTES,
    COMPACTION_ERROR_BYTES,
    COMPACTION_REPORT_BYTES,
    DIARY_KEPT,
    HOOKS,
    ID_BYTES,
    LEASE_MILLISECONDS,
    MARKS,
    MEMORIES_AT_ONCE,
    MEMORY_BYTES,
    MEMORY_TAG_CHARS,
    MEMORY_TAGS,
    MESSAGE_BYTES,
    METADATA_BYTES,
    PAGE,
    STATE_BYTES,
    STATE_KEYS,
    SYSTEM_BYTES,
)
from holdfast.stores import checks, memory_checks
from holdfast.stores.keys import ApiKey
from holdfast.stores.log import Append, SavedView
from holdfast.stores.memories import MemoryQuery
from holdfast.stores.sessions import NewSession, SessionPatch
from tests.contract.kit import compaction
from tests.contract.memory_kit import ANN, entry, memory, memory_id, signal

REF = SessionRef("ada", "s")
NUMBER: Any = 3
LONG = "x" * (ID_BYTES + 1)
HALF = "\ud800"
ENTRY = NewEntry(message=Message(role="user", content="hi"), tokens=1, timestamp=0)
CALL = ModelCall(model="m", timestamp=0)
SIGNAL = signal(memory_id())

Refusal = tuple[Callable[[], object], str | None]
"""What is tried, and the parameter of the error; None: it is allowed."""
Tried = tuple[Sequence[object], Sequence[object], str]
"""Values that are allowed, values that are not, and the parameter of the error."""


def with_(record: Any, check: Callable[[Any], object], field: str, value: object) -> Callable[[], object]:
    """The check of a record with another field."""
    return partial(check, msgspec.structs.replace(record, **{field: value}))


def of(record: Any, check: Callable[[Any], object], **tried: Tried) -> list[Refusal]:
    """A row for each value of each field."""
    rows: list[Refusal] = []
    for field, (allowed, refused, param) in tried.items():
        rows += [(with_(record, check, field, value), None) for value in allowed]
        rows += [(with_(record, check, field, value), param) for value in refused]
    return rows


def json_of(size: int) -> dict[str, str]:
    """An object of so many bytes as JSON."""
    return {"k": "x" * (size - len('{"k":""}'))}


def ids(param: str, *, none: bool = False) -> Tried:
    """What may be an identifier."""
    return [*([None] if none else []), "x", "x" * ID_BYTES], ["", LONG, HALF], param


def payload(entry_: NewEntry) -> object:
    return checks.encode_payloads([ENTRY, entry_])


def check_call(call: ModelCall) -> None:
    checks.check_append(Append(timestamp=0, calls=[call]))


def check_compaction(new: Any) -> None:
    checks.check_append(Append(timestamp=0, compactions=[new]))


def put(one: Any) -> object:
    return memory_checks.check_delta(ANN, MemoryDelta(put=(one,)))


def check_signal(one: Any) -> object:
    return memory_checks.check_delta(ANN, MemoryDelta(signals=(one,)))


def check_diary(one: Any) -> object:
    return memory_checks.check_delta(ANN, MemoryDelta(diary=(one,)))


def message_of(size: int) -> Message:
    return Message(role="user", content="x" * (size - len('{"role":"user","content":""}')))


def memory_of(size: int) -> Any:
    (data,) = memory_checks.check_delta(ANN, MemoryDelta(put=(memory("x"),)))
    return memory("x" * (size - len(data) + 1))


ENDING = Ending(id="e", user_id="ada", session_id="s", withdrawn=True, reason="ttl", ended_at=0, due_at=0)
KEY = ApiKey(id="k", hash=b"h" * 32, tenant="acme", created_at=0)
ARTIFACT = NewArtifact(name="a.txt", blob="b", mime_type="text/plain", size=0, sha256=b"h" * 32, created_at=0)
NEW = NewSession(id="s", user_id="ada", timestamp=0)
OLD = OldEntry(message=Message(role="user", content="hi"), tokens=1, timestamp=0)
installed = partial(checks.check_new_session, past=True)

ROWS: list[Refusal] = [
    (partial(checks.check_id, NUMBER, "id"), "id"),
    (partial(checks.check_ref, SessionRef("", "s")), "user_id"),
    (partial(checks.check_ref, SessionRef("ada", "")), "session_id"),
    *((partial(checks.check_limit, limit), None) for limit in (1, PAGE)),
    *((partial(checks.check_limit, limit), "limit") for limit in (0, PAGE + 1)),
    (partial(checks.check_limit, PAGE + 1, highest=None), None),
    (partial(checks.check_limit, 0, lowest=0), None),
    (partial(checks.check_importances, dict.fromkeys(range(PAGE), 1.0)), None),
    (partial(checks.check_importances, dict.fromkeys(range(PAGE + 1), 1.0)), "importances"),
    (partial(checks.check_importances, {3: math.inf}), "importances[3]"),
    (partial(checks.check_importance, math.nan), "importance"),
    (partial(checks.check_lease, "", "h", 0, 1), "name"),
    (partial(checks.check_lease, "n", "", 0, 1), "holder"),
    *((partial(checks.check_lease, "n", "h", 5, 5 + ms), None) for ms in (1, LEASE_MILLISECONDS)),
    *((partial(checks.check_lease, "n", "h", 5, 5 + ms), "until") for ms in (0, LEASE_MILLISECONDS + 1)),
    # the end of a session
    (partial(checks.check_ending, ENDING, of=REF), None),
    (partial(checks.check_ending, ENDING, of=SessionRef("ada", "t")), "ending"),
    (partial(checks.check_ending, msgspec.structs.replace(ENDING, withdrawn=False), of=REF), "ending"),
    (partial(checks.check_ending, msgspec.structs.replace(ENDING, withdrawn=False)), None),
    *of(
        ENDING,
        checks.check_ending,
        id=ids("ending_id"),
        user_id=ids("user_id"),
        reason=(["close"], ["tired"], "reason"),
        hooks=([("h",) * HOOKS], [("h",) * (HOOKS + 1)], "hooks"),
    ),
    (with_(ENDING, checks.check_ending, "hooks", ("",)), "hook"),
    # a session, and its patch
    *of(
        NEW,
        checks.check_new_session,
        agent=ids("agent", none=True),
        metadata=([json_of(METADATA_BYTES)], [json_of(METADATA_BYTES + 1), {"k": object()}], "metadata"),
        state=([{"k": 1}, {"user:k": 1}], [{"temp:k": 1}], "state"),
        past=([None], [Past(created_at=0, updated_at=0)], "past"),
        system_messages=([(message_of(SYSTEM_BYTES),)], [(message_of(SYSTEM_BYTES), ENTRY.message)], "system_messages"),
    ),
    *of(NEW, installed, state=([{"k": 1}], [{"user:k": 1}, {"k": "x" * STATE_BYTES}], "state")),
    (with_(NEW, installed, "past", Past(created_at=0, updated_at=0, calls=(CALL,))), None),
    (
        with_(NEW, installed, "past", Past(created_at=0, updated_at=0, calls=(ModelCall(model="", timestamp=0),))),
        "model",
    ),
    (
        with_(NEW, checks.check_new_session, "system_messages", (ENTRY.message, Message(role="x"))),
        "system_messages[1].role",
    ),
    *of(
        SessionPatch(),
        checks.check_patch,
        agent=ids("agent", none=True),
        state=([{"k": None}], [{"temp:k": 1}], "state"),
        metadata=([{}], [json_of(METADATA_BYTES + 1)], "metadata"),
    ),
    # what stands beside the entries of a write
    *of(
        Append(timestamp=0),
        checks.check_append,
        idempotency_key=ids("idempotency_key", none=True),
        release=ids("release", none=True),
        views=([None, {"v": SavedView(0, b"")}], [{"": SavedView(0, b"")}], "view"),
        entries=(
            [(ENTRY,), (msgspec.structs.replace(OLD, stands_for=b"d" * 16),)],
            [(OLD,), (msgspec.structs.replace(OLD, stands_for=b"d" * 16, retired_by=1),)],
            "messages[0]",
        ),
        state_delta=([{"user:k": 1}], [{"temp:k": 1}], "state"),
        state_expect=([{"k": 1}], [{"user:k": 1}, {"app:k": 1}], "state_expect"),
        media=(
            [{b"h" * 32: b"x"}, {b"h" * 32: b"x" * MESSAGE_BYTES}],
            [{b"h" * 31: b"x"}, {b"h" * 32: b"x" * (MESSAGE_BYTES + 1)}],
            "media",
        ),
        claim=([None, Claim("h", 1)], [Claim("", 1)], "claim"),
    ),
    *of(
        CALL,
        check_call,
        model=ids("model"),
        view=(["", "v"], [LONG], "view"),
        hash=([b"", b"h" * 16], [b"h", b"h" * 15], "hash"),
        build=([b"x" * CALL_BUILD_BYTES], [b"x" * (CALL_BUILD_BYTES + 1)], "build"),
    ),
    *of(
        compaction(2, 4),
        check_compaction,
        view=ids("compactions[0].view"),
        model=ids("compactions[0].model", none=True),
        kind=(["digest"], ["poem"], "compactions[0].kind"),
        first=([0, 4], [-1, 5], "compactions[0].first"),
        through=([4], [3], "compactions[0].first"),
        text=(["x" * COMPACTION_BYTES], ["x" * (COMPACTION_BYTES + 1), "", HALF], "compactions[0].text"),
        error=([None, "x" * COMPACTION_ERROR_BYTES], ["x" * (COMPACTION_ERROR_BYTES + 1)], "compactions[0].error"),
        report=(
            [None, json_of(COMPACTION_REPORT_BYTES)],
            [json_of(COMPACTION_REPORT_BYTES + 1)],
            "compactions[0].report",
        ),
        **{
            count: ([0], [-1], "compactions[0].tokens")
            for count in ("tokens", "source_tokens", "total", "prompt_tokens", "completion_tokens")
        },
    ),
    (partial(check_compaction, compaction(0, 1, "", error="no answer")), None),
    # entries
    *of(
        ENTRY,
        payload,
        agent=ids("agent", none=True),
        tokens=([0], [-1], "messages[1].tokens"),
        importance=([None, 0.5, 7], [math.inf, math.nan], "messages[1].importance"),
        metadata=([None, json_of(METADATA_BYTES)], [json_of(METADATA_BYTES + 1)], "messages[1].metadata"),
    ),
    (with_(ENTRY, payload, "message", Message(role="robot")), "messages[1].role"),
    (with_(ENTRY, payload, "message", Message(role="user", content=HALF)), "messages[1]"),
    (with_(ENTRY, payload, "message", message_of(MESSAGE_BYTES)), None),
    (with_(ENTRY, payload, "message", message_of(MESSAGE_BYTES + 1)), "messages[1]"),
    *of(OLD, payload, stands_for=([None, b"d" * 16], [b"", b"d" * 15], "messages[1].digest")),
    # state of users and tenants
    (partial(checks.check_state_names, None, ("k",) * STATE_KEYS), None),
    (partial(checks.check_state_names, None, ("k",) * (STATE_KEYS + 1)), "names"),
    (partial(checks.check_state_names, "", ()), "user_id"),
    (partial(checks.check_scope_state, "", {}), "user_id"),
    (partial(checks.check_scope_state, None, {"k": 1}, {"k": 1}), None),
    # what is looked for
    (partial(checks.check_marks, "ada", [b"d"] * MARKS, REF), None),
    (partial(checks.check_marks, "ada", [b"d"] * (MARKS + 1), None), "marks"),
    (partial(checks.check_marks, "", [], None), "user_id"),
    (partial(checks.check_marks, "ada", [], SessionRef("ada", "")), "session_id"),
    # keys and artifacts
    *of(
        KEY,
        checks.check_key,
        id=ids("id"),
        hash=([], [b"h" * 31, b"h" * 33], "hash"),
        name=(["", "x" * ID_BYTES], [LONG, HALF], "name"),
        tenant=ids("tenant"),
        user_id=ids("user_id", none=True),
        role=(["read"], ["king"], "role"),
        rate=([None, 1], [0], "rate"),
        max_body=([None, 1], [0], "max_body"),
    ),
    *of(
        ARTIFACT,
        partial(checks.check_artifact, REF),
        name=(["b.txt"], ["user:b.txt", "a\u0308"], "name"),
        blob=(["0az", "z" * 64], ["", "z" * 65, "A"], "blob"),
        mime_type=ids("mime_type"),
        author=ids("author", none=True),
        size=([0], [-1], "size"),
        sha256=([], [b"h" * 31], "sha256"),
        metadata=([json_of(ARTIFACT_METADATA_BYTES)], [json_of(ARTIFACT_METADATA_BYTES + 1)], "metadata"),
    ),
    (partial(checks.check_scope, UserRef("ada"), "user:a"), None),
    (partial(checks.check_scope, UserRef("ada"), "a"), "name"),
    (partial(checks.check_scope, UserRef("")), "user_id"),
    (partial(checks.check_scope, SessionRef("ada", "")), "session_id"),
    (partial(checks.check_blobs, ("b",) * PAGE), None),
    (partial(checks.check_blobs, ("b",) * (PAGE + 1)), "blobs"),
    # memories
    *((partial(memory_checks.check_owner, owner), None) for owner in (Owner("user", "ada"), Owner("app"))),
    *(
        (partial(memory_checks.check_owner, Owner(*owner)), "owner")
        for owner in (("user", ""), ("app", "x"), ("cat", "x"))
    ),
    *of(
        MemoryQuery(limit=1),
        partial(memory_checks.check_query, ANN),
        limit=([PAGE], [0, PAGE + 1], "limit"),
        ids=([None, ("x",) * PAGE], [("x",) * (PAGE + 1), ("",)], "ids"),
        numbers=([None, (1,) * PAGE], [(1,) * (PAGE + 1)], "numbers"),
        status=([None, "active"], ["asleep"], "status"),
    ),
    *of(
        MemoryDelta(),
        partial(memory_checks.check_delta, ANN),
        put=(
            [tuple(memory() for _ in range(MEMORIES_AT_ONCE))],
            [tuple(memory() for _ in range(MEMORIES_AT_ONCE + 1)), (memory(id="mem_" + "0" * 32),) * 2],
            "put",
        ),
        forget=([("x",) * MEMORIES_AT_ONCE], [("",)], "forget"),
        signals=([(SIGNAL,) * PAGE], [(SIGNAL,) * (PAGE + 1)], "signals"),
        signals_before=([None, 2**62 - 1], [2**62, -(2**62), "1"], "signals_before"),
        diary=([(entry(1),) * DIARY_KEPT], [(entry(1),) * (DIARY_KEPT + 1)], "diary"),
    ),
    (
        partial(
            memory_checks.check_delta,
            ANN,
            MemoryDelta(put=(memory(id="mem_" + "0" * 32),), forget=("mem_" + "0" * 32,)),
        ),
        "put",
    ),
    *of(
        memory(),
        put,
        owner=([], [Owner("app")], "put[0].owner"),
        id=([memory_id()], ["mem_1", "x"], "put[0].id"),
        importance=([0, 1, 0.5], [-0.1, 1.1, "1"], "put[0].importance"),
        trust=([0, 1], [-0.1, 1.1], "put[0].trust"),
        score=([None, 7.5], [math.inf], "put[0].score"),
        number=([0, 2**62 - 1], [-1, 2**62], "put[0].number"),
        content=(["x"], ["", " \n"], "put[0].content"),
        tags=(
            [("x",) * MEMORY_TAGS, ("x" * MEMORY_TAG_CHARS,)],
            [("x",) * (MEMORY_TAGS + 1), (" ",), ("x" * (MEMORY_TAG_CHARS + 1),), ("a\nb",)],
            "put[0].tags",
        ),
        agent=([None, "x"], ["", LONG], "put[0].agent"),
        sources=(
            [(MemorySource(session_id="s", user_id="u", seqs=(1,)),)],
            [
                (MemorySource(session_id="", user_id="u", seqs=(1,)),),
                (MemorySource(session_id="s", user_id="", seqs=(1,)),),
            ],
            "put[0].sources",
        ),
        supersedes=([(memory_id(),)], [("mem_1",)], "put[0].supersedes"),
        superseded_by=([None, memory_id()], ["mem_1"], "put[0].supersedes"),
        type=(["semantic"], ["poem"], "put[0]"),
        metadata=([{}], [{"k": object()}], "put[0]"),
        **{
            time: ([0, 2**62 - 1], [2**62, 0.5], f"put[0].{time}")
            for time in ("created_at", "updated_at", "valid_from", "valid_until", "promoted_at", "reviewed_at")
        },
    ),
    (lambda: put(memory_of(MEMORY_BYTES)), None),
    (lambda: put(memory_of(MEMORY_BYTES + 1)), "put[0]"),
    *of(
        SIGNAL,
        check_signal,
        memory_id=ids("signals[0].memory_id"),
        at=([0], [2**62], "signals[0].at"),
        score=([0, 1], [-0.1, 1.1], "signals[0].score"),
        query=([b"", b"q" * 64], [b"q" * 65, "q"], "signals[0].query"),
        session=(["", "s"], [LONG], "signals[0].session"),
    ),
    *of(
        entry(1),
        check_diary,
        id=ids("diary[0].id"),
        at=([0], [2**62], "diary[0].at"),
        report=([{}, json_of(METADATA_BYTES)], [[], json_of(METADATA_BYTES + 1)], "diary[0].report"),
    ),
    (partial(memory_checks.check_change, 2**62, None), "timestamp"),
    (partial(memory_checks.check_change, 0, 2**62), "expect"),
    (partial(memory_checks.check_change, 0, 1), None),
]


def find_refused(tried: Callable[[], object]) -> str | None:
    """The parameter that is refused."""
    try:
        tried()
    except HoldfastError as refused:
        return getattr(refused, "param", "?")
    return None


@pytest.mark.parametrize("at", range(len(ROWS)))
def test_rejected_parameters_are_named(at: int) -> None:
    tried, param = ROWS[at]
    assert find_refused(tried) == param


def test_ids_that_no_memory_can_have_are_not_asked_for() -> None:
    one, other = memory_id(), memory_id()
    assert memory_checks.keep_possible_ids([one, "x", other, one, "mem_1"]) == [one, other]


def test_what_a_store_keeps_beside_a_memory_is_not_in_its_bytes() -> None:
    """Owner, number and version come back from where they stand."""
    kept: Mapping[str, Any] = {"number": 7, "version": 3}
    one = msgspec.structs.replace(memory("likes tea", tags=("food",)), **kept)
    (data,) = memory_checks.check_delta(ANN, MemoryDelta(put=(one,)))
    assert (
        data == memory_checks.check_delta(ANN, MemoryDelta(put=(msgspec.structs.replace(one, number=0, version=0),)))[0]
    )
    assert memory_checks.decode_memory(data, ANN, 7, 3) == one
