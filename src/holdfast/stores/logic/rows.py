"""Convert rows to structs and back. Only this module depends on the order of columns.

"A row of `x`" is a row that the statement `x` returns; "the parameters of `x`" are those of the statement `x`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec.structs import force_setattr

from holdfast.domain.artifact import Artifact, NewArtifact
from holdfast.domain.messages import Message, decode_payload
from holdfast.domain.reconcile import Mode
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
    get_kind,
)
from holdfast.domain.state import TEMP, select_own
from holdfast.errors import StoreCorrupt
from holdfast.stores.keys import ApiKey, Role
from holdfast.stores.logic.steps import Row
from holdfast.stores.matching import Sighting, make_key

KINDS: tuple[Kind, ...] = ("system", "user", "assistant", "calls", "result", "note")
"""The kinds of entries. A kind is stored as its index here. SQL statements contain the indexes of `calls` and `result`."""
_NUMBER_OF = {kind: number for number, kind in enumerate(KINDS)}
_FIRST_HIDDEN: Final = 3
"""Index of the first kind that clients do not see; see `Message.visible`."""
ENDLESS = 2**62
"""Means "no upper bound" as a parameter of statements, in every dialect."""

IN_STATE: Final = ((f"{TEMP}turns", "state_turns", dict),)
"""The fields of `Session` that are stored in the state column: key, name of the field, type.

The keys cannot be keys of the session's own state. The default of a field must be an empty value (`""`, `{}`, 0); it is not
stored. If the stored value has another type, it is damaged, and the default is used.
"""

_encode = msgspec.json.Encoder().encode
_decode_messages = msgspec.json.Decoder(tuple[Message, ...]).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_ids = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_seqs = msgspec.json.Decoder(tuple[int, ...]).decode


def decode_text(column: str | bytes) -> str:
    """Return an identifier from its column as text.

    In dialects whose text columns do not compare byte for byte, the column contains bytes. Bytes that are not UTF-8, from a
    damaged row, are replaced by U+FFFD; `_decode_exact_text` raises an error instead.
    """
    return column if isinstance(column, str) else column.decode(errors="replace")


def _decode_optional_text(column: str | bytes | None) -> str | None:
    return None if column is None else decode_text(column)


def _decode_exact_text(column: str | bytes) -> str:
    """Return an identifier from its column as text. Raises one of `UNDECODABLE` if the column is damaged."""
    return column if isinstance(column, str) else column.decode()


_DECODED: Final = (
    (21, "last_kind", KINDS.__getitem__),
    (23, "open_calls", _decode_ids),
    (25, "system_messages", _decode_messages),
    (26, "state", _decode_object),
    (27, "metadata", _decode_object),
)
"""Columns of `session_rows` to decode: position, field and decoder. If one cannot be decoded, the session is returned without it."""
_NAMES: Final = {1: "tenant", 2: "user_id", 3: "id", 4: "agent", 32: "withdrawn", 33: "identity", 34: "claim"}
_TEXTS: Final = {**_NAMES, 8: "status", 30: "end_reason"}
"""Columns of `session_rows` that are text: position and field."""
UNDECODABLE: Final = (msgspec.MsgspecError, LookupError, TypeError, ValueError)
"""Exceptions that decoding a damaged column can raise."""


def get_identity(row: Row) -> str:
    """Return the identity of the session in a row of `session_rows`."""
    return decode_text(row[33])


def decode_session(row: Row) -> Session:
    """Decode a row of `session_rows`. Fields that cannot be decoded are empty, and `Session.damaged` names them."""
    try:
        return _decode_session(row)
    except UNDECODABLE:
        return _decode_damaged_session(row)


def decode_intact_session(row: Row) -> Session:
    """Decode a row of `session_rows`. Raises `StoreCorrupt` if a field cannot be decoded."""
    try:
        return _decode_session(row)
    except UNDECODABLE:
        return _decode_damaged_session(row).require_intact()


def _decode_damaged_session(row: Row) -> Session:
    columns, damaged = list(row), []
    for at, name in _TEXTS.items():
        if isinstance(columns[at], bytes):
            try:
                columns[at] = columns[at].decode()
            except UnicodeDecodeError:
                columns[at] = decode_text(columns[at])
                damaged.append(name)
    for at, name, decode in _DECODED:
        try:
            if columns[at] is not None:
                decode(columns[at])
        except UNDECODABLE:
            columns[at] = None
            damaged.append(name)
    return msgspec.structs.replace(_decode_session(columns), damaged=tuple(damaged))


def _decode_session(row: Row) -> Session:
    (_, tenant, user_id, id_, agent, version, created_at, updated_at, status, ttl, messages, size) = row[:12]
    calls, prompt_tokens, completion_tokens, cached_tokens, next_seq, turn_id, total, digest, last_seq = row[12:21]
    last_kind, unit, open_calls, anchor, system_messages, state, metadata, accessed_at, ended_at, end_reason = row[
        21:31
    ]
    _, withdrawn, identity, holder, until, wanted, reshaped = row[31:38]
    given = {} if state is None else _decode_object(state)
    session = Session(
        tenant=tenant if type(tenant) is str else tenant.decode(),
        user_id=user_id if type(user_id) is str else user_id.decode(),
        id=id_ if type(id_) is str else id_.decode(),
        agent=agent if agent is None or type(agent) is str else agent.decode(),
        version=version,
        created_at=created_at,
        updated_at=updated_at,
        accessed_at=accessed_at,
        status=status if type(status) is str else status.decode(),  # type: ignore[arg-type]  # a store wrote it
        ended_at=ended_at,
        end_reason=end_reason if end_reason is None or type(end_reason) is str else end_reason.decode(),  # type: ignore[arg-type]
        system_messages=() if system_messages is None else _decode_messages(system_messages),
        state=select_own(given) if given else given,
        metadata={} if metadata is None else _decode_object(metadata),
        ttl=ttl,
        withdrawn=withdrawn if type(withdrawn) is str else withdrawn.decode(),
        identity=identity if type(identity) is str else identity.decode(),
        reshaped=reshaped,
        claim=Claim(holder if type(holder) is str else holder.decode(), until, wanted == 1) if holder else None,
        messages=messages,
        bytes=size,
        usage=Usage(calls, prompt_tokens, completion_tokens, cached_tokens),
        tail=Tail(
            next_seq=next_seq,
            turn_id=turn_id,
            total=total,
            digest=digest,
            last_seq=last_seq,
            last_kind=None if last_kind is None else KINDS[last_kind],
            unit=unit,
            open_calls=() if open_calls is None else _decode_ids(open_calls),
            anchor=anchor,
        ),
    )
    for key, name, kind in IN_STATE if given else ():
        if type(value := given.get(key)) is kind:
            force_setattr(session, name, value)  # nothing else has the new session yet
    return session


def encode_claim(claim: Claim | None) -> Row:
    """Return a claim as columns. No claim is stored as an empty holder."""
    return ("", 0, 0) if claim is None else (claim.holder, claim.until, 1 if claim.wanted else 0)


def encode_life(session: Session) -> Row:
    """Return the columns from `updated_at` to `end_reason` of the statement `session_advance`, in order."""
    expires_at = session.accessed_at + session.ttl if session.ttl else None
    return session.updated_at, session.accessed_at, expires_at, session.status, session.ended_at, session.end_reason


def encode_counters(session: Session) -> Row:
    """Return the columns from `messages` to `anchor`, in order."""
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


def encode_profile(session: Session) -> Row | None:
    """Return the large fields of a session as columns; None if all these fields are empty."""
    state = session.state
    for key, name, _ in IN_STATE:
        if value := getattr(session, name):
            state = {**state, key: value}
    if not (state or session.system_messages or session.metadata):
        return None
    return _encode(session.system_messages), _encode(state), _encode(session.metadata)


def decode_entry(row: Row) -> Entry:
    """Decode a row of `entry_rows`. If it is damaged, raise `StoreCorrupt` with the entry's `seq` in the message."""
    try:
        return _decode_entry(row)
    except UNDECODABLE as exc:
        raise StoreCorrupt(f"message {row[1]} is damaged and cannot be decoded ({exc})") from exc


def _decode_entry(row: Row) -> Entry:
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
        agent=None if agent is None else _decode_exact_text(agent),
        importance=importance,
        pinned=pinned == 1,
        retired_by=retired_by,
        erased=erased == 1,
    )


def encode_entry(session: int, entry: Entry, payload: bytes, scope: bytes) -> Row:
    """Return the parameters of `entry_insert`.

    Args:
        session: primary key of the session.
        entry: the entry.
        payload: its encoded message.
        scope: the value from `holdfast.stores.matching.make_scope` for the session's user.
    """
    kind = _NUMBER_OF[get_kind(entry.message)]
    return (
        session,
        entry.seq,
        entry.turn_id,
        entry.seq - entry.unit,
        entry.timestamp,
        entry.tokens,
        entry.total,
        kind,
        entry.digest,
        entry.agent,
        entry.importance,
        1 if entry.pinned else 0,
        None if entry.metadata is None else _encode(entry.metadata),
        payload,
        make_key(scope, entry.digest) if kind < _FIRST_HIDDEN else None,
        None if entry.alias is None else make_key(scope, entry.alias),
        entry.retired_by,
        1 if entry.erased else 0,
    )


def encode_entries(session: int, entries: Sequence[Entry], payloads: Sequence[bytes], scope: bytes) -> list[Row]:
    """Return the parameters of `entry_insert` for several entries and their payloads."""
    pairs = zip(entries, payloads, strict=True)
    return [encode_entry(session, entry, payload, scope) for entry, payload in pairs]


def _decode_object_or(default: dict[str, Any] | None, column: bytes | None) -> dict[str, Any] | None:
    """Decode a JSON object; return `default` if the column is NULL or cannot be decoded."""
    try:
        return default if column is None else _decode_object(column)
    except UNDECODABLE:
        return default


def encode_metadata(metadata: Mapping[str, Any] | None) -> bytes | None:
    """Return an entry's metadata as a column; NULL if there are none."""
    return None if metadata is None else _encode(metadata)


def encode_seqs(seqs: Sequence[int]) -> bytes | None:
    """Encode `SavedView.keep` as a column; NULL if it is empty."""
    return _encode(seqs) if seqs else None


def encode_array(items: Iterable[Any]) -> str:
    """Return values as one parameter, a JSON array, so that one statement can read any number of them."""
    return _encode(list(items)).decode()


def decode_seqs(column: bytes | None) -> tuple[int, ...]:
    """Decode `SavedView.keep` from its column. Raises one of `UNDECODABLE` if the column is damaged."""
    return () if column is None else _decode_seqs(column)


def decode_call(row: Row) -> ModelCall:
    """Decode a row of `calls_newest`."""
    model, timestamp, prompt_tokens, completion_tokens, cached_tokens, turn_id, through, view, hash_, build = row
    return ModelCall(
        model=decode_text(model),
        timestamp=timestamp,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached_tokens,
        turn_id=turn_id,
        through=through,
        view=decode_text(view),
        hash=hash_,
        build=build,
    )


def encode_call(session: int, call: ModelCall) -> Row:
    """Return the parameters of `call_insert`."""
    used = (call.prompt_tokens, call.completion_tokens, call.cached_tokens)
    return session, call.timestamp, call.model, *used, call.turn_id, call.through, call.view, call.hash, call.build


def decode_compaction(row: Row) -> StoredCompaction:
    """Decode a row of `compaction_rows`."""
    _, id_, status, view, first, last, kind, tokens, source_tokens, total, model, created_at, through = row[:13]
    prompt_tokens, completion_tokens, error, report, text = row[13:]
    return StoredCompaction(
        id=id_,
        status=status,
        view=decode_text(view),
        first=first,
        last=last,
        kind=kind,
        text=text.decode(),
        tokens=tokens,
        source_tokens=source_tokens,
        total=total,
        model=_decode_optional_text(model),
        created_at=created_at,
        through=through,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        report=_decode_object_or(None, report),
        error=None if error is None else error.decode(),
    )


def encode_compaction(session: int, one: StoredCompaction, laid_at: int) -> Row:
    """Return the parameters of `compaction_insert`; `laid_at` is the session's version after the write."""
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


def decode_ending(row: Row) -> Ending:
    """Decode a row of `endings_due`."""
    id_, user_id, session_id, identity, withdrawn, reason, ended_at, due_at, attempts, hooks, error = row
    return Ending(
        id=decode_text(id_),
        user_id=decode_text(user_id),
        session_id=decode_text(session_id),
        identity=decode_text(identity),
        withdrawn=withdrawn == 1,
        reason=cast(EndReason, decode_text(reason)),
        ended_at=ended_at,
        due_at=due_at,
        attempts=attempts,
        hooks=_decode_hooks(hooks),
        error=_decode_optional_text(error),
    )


def _decode_hooks(column: bytes) -> tuple[str, ...]:
    """Decode the hooks that must still be notified. A damaged list is treated as empty, so that the session can be deleted."""
    try:
        return _decode_ids(column)
    except UNDECODABLE:
        return ()


def encode_ending(tenant: str, ending: Ending) -> Row:
    """Return the parameters of `ending_insert`."""
    names = (tenant, ending.id, ending.user_id, ending.session_id, ending.identity)
    ended = (1 if ending.withdrawn else 0, ending.reason)
    return (*names, *ended, ending.ended_at, ending.due_at, ending.attempts, _encode(ending.hooks), ending.error)


def decode_artifact(row: Row) -> Artifact:
    """Decode a row of `artifact_rows`."""
    name, version, blob, mime_type, size, sha256, author, metadata, created_at = row[:9]
    return Artifact(
        name=decode_text(name),
        version=version,
        blob=decode_text(blob),
        mime_type=decode_text(mime_type),
        size=size,
        sha256=sha256,
        author=_decode_optional_text(author),
        metadata=_decode_object_or({}, metadata) or {},
        created_at=created_at,
    )


def encode_artifact(place: Row, key: str, new: NewArtifact, version: int) -> Row:
    """Return the parameters of `artifact_insert`.

    Args:
        place: key columns of the scope.
        key: the folded name.
        new: the artifact.
        version: number of the version.
    """
    metadata = _encode(new.metadata) if new.metadata else None
    fields = (new.mime_type, new.size, new.sha256, new.author, metadata, new.created_at)
    return (*place, key, version, new.name, new.blob, *fields)


def decode_sighting(user_id: str, mark: int, row: Row) -> Sighting:
    """Decode a row of `mark_places`; `mark` is the index of the digest that was found."""
    id_, identity, updated_at, last_digest, seq, digest, retired_by = row
    live = retired_by is None
    return Sighting(
        ref=SessionRef(user_id, decode_text(id_)),
        identity=decode_text(identity),
        mark=mark,
        seq=seq,
        digest=digest,
        live=live,
        last=live and digest == last_digest,
        updated_at=updated_at,
    )


def decode_key(row: Row) -> ApiKey:
    """Decode a row of `key_get`."""
    id_, hash_, name, opens, user_id, role, created_at, expires_at, revoked_at, used_at, *limits = row
    rate, max_body, session_mode, budget = limits
    return ApiKey(
        id=decode_text(id_),
        hash=hash_,
        name=decode_text(name),
        tenant=decode_text(opens),
        user_id=_decode_optional_text(user_id),
        role=cast(Role, decode_text(role)),
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
        used_at=used_at,
        rate=rate,
        max_body=max_body,
        session_mode=cast("Mode | None", _decode_optional_text(session_mode)),
        budget=budget,
    )


def encode_key(tenant: str, key: ApiKey) -> Row:
    """Return the parameters of `key_insert`."""
    names = (tenant, key.id, key.hash, key.name, key.tenant, key.user_id, key.role)
    times = (key.created_at, key.expires_at, key.revoked_at, key.used_at)
    return (*names, *times, key.rate, key.max_body, key.session_mode, key.budget)
