"""Rows to structs and back: the one place that knows the order of columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import msgspec

from holdfast.domain.artifact import Artifact, NewArtifact
from holdfast.domain.memory import DiaryEntry, Memory, Owner, OwnerKind, Signal
from holdfast.domain.messages import Message, decode_payload
from holdfast.domain.session import (
    Claim,
    Ending,
    EndReason,
    Entry,
    Kind,
    ModelCall,
    Session,
    SessionRef,
    StoredCompaction,
    Tail,
    Usage,
    kind_of,
)
from holdfast.domain.state import own_of
from holdfast.stores.keys import ApiKey, Role
from holdfast.stores.logic.steps import Row
from holdfast.stores.matching import Sighting, key_of
from holdfast.stores.memory_checks import stored_memory

KINDS: tuple[Kind, ...] = ("system", "user", "assistant", "calls", "result")
"""A kind's number in the database is its place here; statements rely on the last two."""
_NUMBER_OF = {kind: number for number, kind in enumerate(KINDS)}
ENDLESS = 2**62
"""Stands for no upper bound, in every dialect."""

_encode = msgspec.json.Encoder().encode
_decode_messages = msgspec.json.Decoder(tuple[Message, ...]).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_ids = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_seqs = msgspec.json.Decoder(tuple[int, ...]).decode


def text_of(column: str | bytes) -> str:
    """An identifier from its column; where `str` columns do not compare byte for byte, it is stored as bytes."""
    return column if isinstance(column, str) else column.decode()


def _name_of(column: str | bytes | None) -> str | None:
    return None if column is None else text_of(column)


def session_of(row: Row) -> Session:
    """A session from a row of `session_rows`."""
    (_, tenant, user_id, id_, agent, version, created_at, updated_at, status, ttl, messages, size) = row[:12]
    calls, prompt_tokens, completion_tokens, cached_tokens = row[12:16]
    system_messages, state, metadata, accessed_at, ended_at, end_reason, _, withdrawn, identity = row[25:34]
    return Session(
        tenant=text_of(tenant),
        user_id=text_of(user_id),
        id=text_of(id_),
        agent=_name_of(agent),
        version=version,
        created_at=created_at,
        updated_at=updated_at,
        accessed_at=accessed_at,
        status=cast('Literal["active", "closed"]', status),
        ended_at=ended_at,
        end_reason=cast("EndReason | None", _name_of(end_reason)),
        system_messages=() if system_messages is None else _decode_messages(system_messages),
        state={} if state is None else own_of(_decode_object(state)),
        metadata={} if metadata is None else _decode_object(metadata),
        ttl=ttl,
        withdrawn=text_of(withdrawn),
        identity=text_of(identity),
        reshaped=row[37],
        claim=_claim_of(row[34:37]),
        messages=messages,
        bytes=size,
        usage=Usage(calls, prompt_tokens, completion_tokens, cached_tokens),
        tail=_tail_of(row[16:25]),
    )


def _claim_of(row: Row) -> Claim | None:
    holder, until, wanted = row
    return Claim(text_of(holder), until, wanted == 1) if holder else None


def claim_row(claim: Claim | None) -> Row:
    """The columns of a claim; nobody's has no holder."""
    return ("", 0, 0) if claim is None else (claim.holder, claim.until, 1 if claim.wanted else 0)


def _tail_of(row: Row) -> Tail:
    next_seq, turn_id, total, digest, last_seq, last_kind, unit, open_calls, anchor = row
    return Tail(
        next_seq=next_seq,
        turn_id=turn_id,
        total=total,
        digest=digest,
        last_seq=last_seq,
        last_kind=None if last_kind is None else KINDS[last_kind],
        unit=unit,
        open_calls=() if open_calls is None else _decode_ids(open_calls),
        anchor=anchor,
    )


def counters(session: Session) -> Row:
    """The columns of `session` from `messages` to `anchor`, in order."""
    usage, tail = session.usage, session.tail
    return (
        session.messages,
        session.bytes,
        usage.calls,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        tail.next_seq,
        tail.turn_id,
        tail.total,
        tail.digest,
        tail.last_seq,
        None if tail.last_kind is None else _NUMBER_OF[tail.last_kind],
        tail.unit,
        _encode(tail.open_calls) if tail.open_calls else None,
        tail.anchor,
    )


def profile(session: Session) -> Row | None:
    """The large fields of `session`; None when all are empty."""
    if not (session.system_messages or session.state or session.metadata):
        return None
    return _encode(session.system_messages), _encode(session.state), _encode(session.metadata)


def entry_of(row: Row) -> Entry:
    """An entry from a row of `entry_rows`."""
    (
        _,
        seq,
        turn_id,
        unit_back,
        timestamp,
        tokens,
        total,
        digest,
        agent,
        importance,
        pinned,
        retired_by,
        erased,
        metadata,
        payload,
    ) = row
    return Entry(
        seq=seq,
        turn_id=turn_id,
        unit=seq - unit_back,
        timestamp=timestamp,
        tokens=tokens,
        total=total,
        digest=digest,
        message=decode_payload(payload),
        metadata=None if metadata is None else _decode_object(metadata),
        agent=_name_of(agent),
        importance=importance,
        pinned=pinned == 1,
        retired_by=retired_by,
        erased=erased == 1,
    )


def entry_row(session: int, entry: Entry, payload: bytes, scope: bytes) -> Row:
    """The parameters of `entry_insert`; `scope` is that of the session's user, see `holdfast.stores.matching`."""
    return (
        session,
        entry.seq,
        entry.turn_id,
        entry.seq - entry.unit,
        entry.timestamp,
        entry.tokens,
        entry.total,
        _NUMBER_OF[kind_of(entry.message)],
        entry.digest,
        entry.agent,
        entry.importance,
        1 if entry.pinned else 0,
        None if entry.metadata is None else _encode(entry.metadata),
        payload,
        key_of(scope, entry.digest) if entry.message.visible else None,
        None if entry.alias is None else key_of(scope, entry.alias),
    )


def encode_seqs(seqs: Sequence[int]) -> bytes | None:
    """A view's kept entries as a column; NULL for none."""
    return _encode(seqs) if seqs else None


def array_of(items: Iterable[Any]) -> str:
    """Places in a log, or keys, as one parameter, a JSON array: a statement reads all of them, however many."""
    return _encode(list(items)).decode()


def decode_seqs(column: bytes | None) -> tuple[int, ...]:
    """The kept entries from their column."""
    return () if column is None else _decode_seqs(column)


def call_of(row: Row) -> ModelCall:
    """A model call from a row of `calls_newest`."""
    model, timestamp, prompt_tokens, completion_tokens, cached_tokens, turn_id, through, view, hash_, build = row
    return ModelCall(
        model=text_of(model),
        timestamp=timestamp,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached_tokens,
        turn_id=turn_id,
        through=through,
        view=text_of(view),
        hash=hash_,
        build=build,
    )


def call_row(session: int, call: ModelCall) -> Row:
    """The parameters of `call_insert`."""
    used = (call.prompt_tokens, call.completion_tokens, call.cached_tokens)
    return session, call.timestamp, call.model, *used, call.turn_id, call.through, call.view, call.hash, call.build


def compaction_of(row: Row) -> StoredCompaction:
    """A compaction from a row of `compaction_rows`."""
    _, id_, status, view, first, last, kind, tokens, source_tokens, total, model, created_at, through = row[:13]
    prompt_tokens, completion_tokens, error, report, text = row[13:]
    return StoredCompaction(
        id=id_,
        status=status,
        view=text_of(view),
        first=first,
        last=last,
        kind=kind,
        text=text.decode(),
        tokens=tokens,
        source_tokens=source_tokens,
        total=total,
        model=_name_of(model),
        created_at=created_at,
        through=through,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        report=None if report is None else _decode_object(report),
        error=None if error is None else error.decode(),
    )


def compaction_row(session: int, one: StoredCompaction, laid_at: int) -> Row:
    """The parameters of `compaction_insert`; `laid_at` is the session's version behind the write."""
    return (
        session,
        one.id,
        one.status,
        one.view,
        laid_at,
        one.first,
        one.last,
        one.kind,
        one.tokens,
        one.source_tokens,
        one.total,
        one.model,
        one.created_at,
        one.through,
        one.prompt_tokens,
        one.completion_tokens,
        None if one.error is None else one.error.encode(),
        None if one.report is None else _encode(one.report),
        one.text.encode(),
    )


def ending_of(row: Row) -> Ending:
    """An end from a row of `endings_due`."""
    id_, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error = row
    return Ending(
        id=text_of(id_),
        user_id=text_of(user_id),
        session_id=text_of(session_id),
        identity=text_of(identity),
        withdrawn=withdrawn == 1,
        reason=cast(EndReason, text_of(reason)),
        ended_at=ended_at,
        due_at=due_at,
        attempts=attempts,
        hooks=_decode_ids(hooks),
        error=_name_of(error),
    )


def ending_row(tenant: str, ending: Ending) -> Row:
    """The parameters of `ending_insert`."""
    names = (tenant, ending.id, ending.user_id, ending.session_id, ending.identity)
    ended = (1 if ending.withdrawn else 0, ending.reason)
    return (*names, *ended, ending.ended_at, ending.due_at, ending.attempts, _encode(ending.hooks), ending.error)


def artifact_of(row: Row) -> Artifact:
    """A version of an artifact from a row of `artifact_rows`."""
    name, version, blob, mime_type, size, sha256, author, metadata, created_at = row[:9]
    return Artifact(
        name=text_of(name),
        version=version,
        blob=text_of(blob),
        mime_type=text_of(mime_type),
        size=size,
        sha256=sha256,
        author=_name_of(author),
        metadata={} if metadata is None else _decode_object(metadata),
        created_at=created_at,
    )


def artifact_row(place: Row, key: str, new: NewArtifact, version: int) -> Row:
    """The parameters of `artifact_insert`; `place` is the scope's columns, `key` the folded name."""
    metadata = _encode(new.metadata) if new.metadata else None
    said = (new.mime_type, new.size, new.sha256, new.author, metadata, new.created_at)
    return (*place, key, version, new.name, new.blob, *said)


def sighting_of(user_id: str, mark: int, row: Row) -> Sighting:
    """A place of a digest from a row of `mark_places`."""
    id_, identity, updated_at, last_digest, seq, digest, retired_by = row
    live = retired_by is None
    return Sighting(
        ref=SessionRef(user_id, text_of(id_)),
        identity=text_of(identity),
        mark=mark,
        seq=seq,
        digest=digest,
        live=live,
        last=live and digest == last_digest,
        updated_at=updated_at,
    )


def key_from(row: Row) -> ApiKey:
    """An API key from a row of `key_get`."""
    id_, hash_, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, rate, max_body = row
    return ApiKey(
        id=text_of(id_),
        hash=hash_,
        name=text_of(name),
        tenant=text_of(opens),
        user_id=_name_of(user_id),
        role=cast(Role, text_of(role)),
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
        used_at=used_at,
        rate=rate,
        max_body=max_body,
    )


def key_row(tenant: str, key: ApiKey) -> Row:
    """The parameters of `key_insert`."""
    names = (tenant, key.id, key.hash, key.name, key.tenant, key.user_id, key.role)
    return (*names, key.created_at, key.expires_at, key.revoked_at, key.used_at, key.rate, key.max_body)


def owner_of(kind: str | bytes, id_: str | bytes) -> Owner:
    """Whose memories, from its columns."""
    return Owner(cast(OwnerKind, text_of(kind)), text_of(id_))


def memory_of(owner: Owner, row: Row) -> Memory:
    """A memory from the last columns of a row of `memories_forward`."""
    number, _, version, data = row
    return stored_memory(data, owner, number, version)


def signal_of(row: Row) -> Signal:
    """A recall from a row of `signals_all`."""
    memory_id, at, query, score, session = row
    return Signal(memory_id=text_of(memory_id), at=at, query=query, score=score, session=text_of(session))


def diary_entry_of(row: Row) -> DiaryEntry:
    """A sweep from a row of `diary_newest`."""
    id_, at, report = row
    return DiaryEntry(id=text_of(id_), at=at, report=_decode_object(report))


def diary_row(owner: Any, seq: int, entry: DiaryEntry) -> Row:
    """The parameters of `diary_insert`; `owner` is the owner's key."""
    return owner, seq, entry.id, entry.at, _encode(entry.report)
