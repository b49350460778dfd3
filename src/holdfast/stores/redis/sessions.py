"""Create, read, change, replace and remove sessions: a hash each, and sorted sets by which they are listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from msgspec import UnsetType
from msgspec.structs import replace as evolve

from holdfast.domain.history import Past, relived
from holdfast.domain.messages import encode_payload
from holdfast.domain.session import Claim, Ending, NewEntry, Removed, Session, SessionRef
from holdfast.errors import AmbiguousSession, Conflict, SessionExists, SessionNotFound
from holdfast.stores import checks
from holdfast.stores.log import Appended
from holdfast.stores.redis import artifacts, lifecycle, matching, media, origins, state
from holdfast.stores.redis.connection import Command
from holdfast.stores.redis.database import Transaction
from holdfast.stores.redis.handle import Handle, load_sessions
from holdfast.stores.redis.keys import name_part, names_of
from holdfast.stores.redis.log import write_calls, write_entries
from holdfast.stores.redis.records import session_of
from holdfast.stores.session_changes import check_version, installed_session, new_session, patch_session
from holdfast.stores.sessions import NewSession, SessionPatch


class SessionMethods(Handle):
    """Sessions; see `holdfast.stores.sessions.SessionStore`."""

    async def create(self, new: NewSession) -> Session:
        checks.check_new_session(new)
        session = new_session(self.tenant, new)

        async def work(tx: Transaction) -> Session:
            await tx.read()
            if tx.record is not None:
                raise SessionExists(new.id)
            await state.share(tx, new.state)
            tx.insert(session)
            matching.mark_end(tx, None, session.tail.digest)
            return session

        return await self._write(self._session_keys(new.ref), work)

    async def get(self, ref: SessionRef) -> Session:
        checks.check_ref(ref)

        async def work(tx: Transaction) -> Session:
            return (await tx.session())[0]

        return await self._read(self._session_keys(ref), work)

    async def find(self, session_id: str) -> Session:
        checks.check_id(session_id, "session_id")
        await self._tidied()
        begin, key = name_part(session_id), self._tenant_keys.named

        async def work(tx: Transaction) -> Session:
            command = (b"ZRANGEBYLEX", key, b"[" + begin, b"(" + begin + b"\xff", b"LIMIT", 0, 2)
            (members,) = await tx.read(command)
            refs = [SessionRef(user_id, id_) for id_, user_id in map(names_of, members)]
            found = await load_sessions(tx, [self._session_keys(ref) for ref in refs])
            if not found:
                raise SessionNotFound(session_id)
            if len(found) > 1:
                raise AmbiguousSession(session_id)
            return found[0]

        return await self._read(None, work)

    async def update(
        self, ref: SessionRef, patch: SessionPatch, *, timestamp: int, expect: int | None = None
    ) -> Session:
        checks.check_ref(ref)
        checks.check_patch(patch)
        checks.check_int(timestamp, "timestamp")

        async def work(tx: Transaction) -> Session:
            old, _ = await tx.session()
            after = patch_session(old, patch, timestamp)
            check_version(old, expect)
            await state.share(tx, None if isinstance(patch.state, UnsetType) else patch.state)
            tx.save(after, profile=True)
            return after

        return await self._write(self._session_keys(ref), work)

    async def remove(
        self, ref: SessionRef, *, expect: int | None = None, artifacts: int | None = None
    ) -> Removed | None:
        checks.check_ref(ref)
        return await self._write(self._session_keys(ref), partial(_remove, expect=expect, holding=artifacts))

    async def replace(
        self,
        new: NewSession,
        entries: Sequence[NewEntry],
        *,
        fresh: bool = False,
        ending: Ending | None = None,
        media: Mapping[bytes, bytes] = MappingProxyType({}),
    ) -> Appended:
        checks.check_new_session(new, past=True)
        checks.check_media(media)
        if ending is not None:
            checks.check_ending(ending, of=new.ref)
        payloads = checks.payloads_of(entries)
        work = partial(_replace, new=new, entries=entries, payloads=payloads, fresh=fresh, ending=ending, brought=media)
        return await self._write(self._session_keys(new.ref), work)

    async def want(self, ref: SessionRef, holder: str) -> None:
        checks.check_ref(ref)
        checks.check_id(holder, "holder")

        async def work(tx: Transaction) -> None:
            session, _ = await tx.session()
            if session.claim is not None and session.claim.holder == holder and not session.claim.wanted:
                tx.save(evolve(session, claim=Claim(holder, session.claim.until, wanted=True)))

        await self._write(self._session_keys(ref), work)


async def _remove(tx: Transaction, *, expect: int | None, holding: int | None) -> Removed | None:
    await tx.read()
    if tx.record is None:
        return None
    session, _ = await tx.session()
    check_version(session, expect)
    keys = tx.keys
    counted: list[Command] = [(b"HLEN", keys.compactions), (b"HLEN", keys.views), (b"ZCARD", keys.calls)]
    commands = (*counted, (b"HLEN", keys.keyed), (b"HGETALL", keys.media_uses), artifacts.all_versions(keys))
    compactions, views, calls, keyed, uses, members = await tx.read(*commands)
    held = [artifacts.decode_member(member) for member in members]
    if holding not in {None, len(held)}:
        raise Conflict(f"session {session.id!r} has {len(held)} versions of artifacts, not {holding}: read them again")
    media_count, media_bytes = media.totals(uses)
    delete(tx, members)
    return Removed(
        messages=session.messages,
        retired=session.tail.next_seq - session.messages,
        bytes=session.bytes,
        compactions=compactions,
        views=views,
        model_calls=calls,
        idempotency_keys=keyed,
        state_keys=len(session.state),
        artifacts=len(held),
        artifact_bytes=sum(one.size for one in held),
        media=media_count,
        media_bytes=media_bytes,
    )


def delete(tx: Transaction, members: Sequence[bytes]) -> None:
    """Delete a session with all that belongs to it; `members` are its versions of artifacts."""
    keys = tx.keys
    artifacts.release(tx, members)
    for key in (*keys.hanging, keys.head):
        tx.do("UNLINK", key)
    tx.do("HDEL", keys.shared, keys.field)
    lifecycle.forget_marks(tx)
    tx.record = tx.profile = None


async def _replace(
    tx: Transaction,
    *,
    new: NewSession,
    entries: Sequence[NewEntry],
    payloads: Sequence[bytes],
    fresh: bool,
    ending: Ending | None,
    brought: Mapping[bytes, bytes],
) -> Appended:
    past = new.past or Past(created_at=new.timestamp, updated_at=new.timestamp)
    written, tail, live = relived(entries)
    uses = await media.admit(tx, entries, brought, install=True)
    payloads = [
        encode_payload(one.message) if one.erased else as_sent for one, as_sent in zip(written, payloads, strict=True)
    ]
    await tx.read()
    if tx.record is not None and fresh:
        raise SessionExists(new.id)
    old = None if tx.record is None else session_of(tx.record, tx.profile)
    ends = old is not None and ending is not None and old.accessed_at < ending.ended_at
    if old is not None:
        if ends and ending is not None:
            lifecycle.put_end(tx, old, ending)
        else:
            members = (await tx.read(artifacts.all_versions(tx.keys)))[0] if tx.record and tx.record.artifacts else ()
            delete(tx, members)
    size = sum(map(len, payloads))
    session = installed_session(tx.keys.tenant, new, past, old, tail, live=live, size=size)
    tx.insert(session)
    matching.mark_end(tx, None, tail.digest)
    write_entries(tx, written, payloads)
    media.keep(tx, entries, written, uses, brought)
    origins.keep(tx, new.origins)
    write_calls(tx, past.calls)
    told = tuple(entry if entry.alias is None else evolve(entry, alias=None) for entry in written)
    return Appended(session, told, session.version, ended=ends)
