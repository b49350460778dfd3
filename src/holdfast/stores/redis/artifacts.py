"""Artifacts: names and versions of a scope are sorted sets, by folded name, then number. A scope is a session, or a user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from holdfast.domain.artifact import NOTHING, Artifact, ArtifactPage, NewArtifact, Scope, UserRef, folded
from holdfast.errors import ArtifactNotFound, Conflict, SessionNotFound, StaleArtifact, TooLarge
from holdfast.limits import ARTIFACT_NAMES, ARTIFACT_VERSIONS, ARTIFACTS
from holdfast.stores import checks
from holdfast.stores.redis.connection import Command
from holdfast.stores.redis.database import Transaction
from holdfast.stores.redis.handle import Handle
from holdfast.stores.redis.keys import ScopeKeys, SessionKeys, name_part, number_part
from holdfast.stores.redis.records import decode_artifact, encode_artifact, pack, unpack_list

_BEHIND: Final = b"\xff" * 9
"""Follows a member's beginning where all that begin so are meant."""


class _Name(NamedTuple):
    """A name that is in use."""

    name: str = ""
    next_version: int = 0
    newest: int = NOTHING
    versions: int = 0
    bytes: int = 0


class ArtifactMethods(Handle):
    """Artifacts; see `holdfast.stores.artifacts.ArtifactStore`."""

    async def add_artifact(
        self,
        scope: Scope,
        new: NewArtifact,
        *,
        expect: int | None = None,
        room: int | None = None,
        identity: str | None = None,
    ) -> Artifact:
        checks.check_artifact(scope, new)

        async def work(tx: Transaction) -> Artifact:
            keys = tx.keys
            (done, names) = await tx.read((b"HGET", keys.used, new.blob), (b"ZRANGEBYLEX", keys.names, b"-", b"+"))
            # Before the session is looked for: an attempt with an unknown outcome is run again, and may have been done.
            if done is not None:
                return decode_member(done)
            tx.check(keys.used, new.blob, None)
            _check_scope(tx, identity)
            held = [_decode_name(member) for member in names]
            known = next((one for one in held if folded(one.name) == folded(new.name)), _Name())
            if known.name not in ("", new.name):
                raise Conflict(
                    f"{new.name!r} differs from the artifact {known.name!r} in case or Unicode form alone:"
                    " save it under that name, or under one that is more different"
                )
            if expect is not None and expect != known.newest:
                return await _retried(tx, known, new, expect)
            _check_room(held, known, new, room)
            fields = {name: getattr(new, name) for name in new.__struct_fields__}
            artifact = Artifact(version=known.next_version, **fields)
            member = name_part(folded(new.name)) + number_part(artifact.version) + encode_artifact(artifact)
            tx.do("ZADD", keys.versions, 0, member)
            tx.do("HSET", keys.used, new.blob, member)
            tx.tell(b"b", new.blob.encode(), b"1")
            total = known.bytes + new.size
            after = _Name(new.name, known.next_version + 1, known.next_version, known.versions + 1, total)
            _put_name(tx, known, after)
            if tx.record is not None and not tx.record.artifacts:
                tx.amend(artifacts=True)
            return artifact

        return await self._write(self._artifact_keys(scope), work)

    async def artifact(self, scope: Scope, name: str, version: int | None = None) -> Artifact:
        checks.check_scope(scope, name)

        async def work(tx: Transaction) -> Artifact:
            known = await _known(tx, name, version)
            return decode_member(await _version(tx, name, known.newest if version is None else version))

        return await self._read(self._artifact_keys(scope), work)

    async def artifacts(self, scope: Scope, *, limit: int = 100, after: str | None = None) -> ArtifactPage:
        checks.check_scope(scope, after)
        checks.check_limit(limit)

        async def work(tx: Transaction) -> ArtifactPage:
            begin = b"(" + name_part(folded(after)) + _BEHIND if after else b"-"
            (members,) = await tx.read((b"ZRANGEBYLEX", tx.keys.names, begin, b"+", b"LIMIT", 0, limit + 1))
            _check_scope(tx)
            names = [_decode_name(member) for member in members[:limit]]
            found = await tx.read(*(_begins(tx.keys.versions, one.name, one.newest) for one in names))
            return ArtifactPage(tuple(decode_member(some[0]) for some in found), len(members) > limit)

        return await self._read(self._artifact_keys(scope), work)

    async def artifact_versions(
        self, scope: Scope, name: str, *, limit: int = 100, after: int | None = None
    ) -> ArtifactPage:
        checks.check_scope(scope, name)
        checks.check_limit(limit)

        async def work(tx: Transaction) -> ArtifactPage:
            await _known(tx, name)
            (found,) = await tx.read(_after(tx.keys, name, -1 if after is None else after, limit + 1))
            return ArtifactPage(tuple(decode_member(member) for member in found[:limit]), len(found) > limit)

        return await self._read(self._artifact_keys(scope), work)

    async def drop_artifacts(
        self, scope: Scope, name: str | None = None, version: int | None = None
    ) -> tuple[Artifact, ...]:
        checks.check_scope(scope, name)

        async def work(tx: Transaction) -> tuple[Artifact, ...]:
            keys = tx.keys
            if name is None:
                (members,) = await tx.read(all_versions(keys))
                _check_scope(tx)
                if members:
                    _drop(tx, members)
                    tx.do("UNLINK", keys.names)
                return tuple(map(decode_member, members))
            known = await _known(tx, name, version)
            (members,) = await tx.read(_begins(keys.versions, name))
            gone = members if version is None else [await _version(tx, name, version)]
            _drop(tx, gone)
            left = [decode_member(member) for member in members if member not in gone]
            size = sum(one.size for one in left)
            _put_name(tx, known, _Name(name, known.next_version, left[-1].version, len(left), size) if left else None)
            return tuple(map(decode_member, gone))

        return await self._write(self._artifact_keys(scope), work)

    async def blobs_in_use(self, blobs: Sequence[str]) -> frozenset[str]:
        checks.check_blobs(blobs)
        await self._tidied()
        used = self._tenant_keys.used

        async def work(tx: Transaction) -> frozenset[str]:
            found = await tx.read(*((b"HEXISTS", used, blob) for blob in blobs))
            return frozenset(blob for blob, there in zip(blobs, found, strict=True) if there)

        return await self._read(None, work)

    def _artifact_keys(self, scope: Scope) -> ScopeKeys:
        return self._scope_keys(scope.user_id) if isinstance(scope, UserRef) else self._session_keys(scope)


# -- commands and members --------------------------------------------------------
# A version's member is the folded name, the number, and the version; a name's is the folded name, and what is known of it.


def all_versions(keys: ScopeKeys) -> Command:
    """Return the command that reads all versions of a scope."""
    return (b"ZRANGEBYLEX", keys.versions, b"-", b"+")


def _begins(key: bytes, name: str, version: int | None = None) -> Command:
    begin = name_part(folded(name)) + (b"" if version is None else number_part(version))
    return (b"ZRANGEBYLEX", key, b"[" + begin, b"(" + begin + _BEHIND)


def _after(keys: ScopeKeys, name: str, version: int, limit: int) -> Command:
    begin = name_part(folded(name))
    ends = (b"(" + begin + number_part(version) + _BEHIND, b"(" + begin + _BEHIND)
    return (b"ZRANGEBYLEX", keys.versions, *ends, b"LIMIT", 0, limit)


def decode_member(member: bytes) -> Artifact:
    """Return the version in a member."""
    return decode_artifact(member[member.index(b"\0\1") + 2 + 8 :])


def _decode_name(member: bytes) -> _Name:
    return _Name(*_rest(member))


def _rest(member: bytes) -> list[Any]:
    return unpack_list(member[member.index(b"\0\1") + 2 :])


# -- parts ---------------------------------------------------------------------


def _check_scope(tx: Transaction, identity: str | None = None) -> None:
    """Refuse a session that is not there, or is another one than `identity`."""
    if isinstance(tx.keys, SessionKeys) and (tx.record is None or identity not in {None, tx.record.session.identity}):
        raise SessionNotFound(tx.keys.id)


async def _known(tx: Transaction, name: str, version: int | None = None) -> _Name:
    (members,) = await tx.read(_begins(tx.keys.names, name))
    _check_scope(tx)
    known = _decode_name(members[0]) if members else _Name()
    if known.name != name:
        raise ArtifactNotFound(name, version, called=known.name or None)
    return known


async def _version(tx: Transaction, name: str, version: int) -> bytes:
    (found,) = await tx.read(_begins(tx.keys.versions, name, version))
    if not found:
        raise ArtifactNotFound(name, version)
    member: bytes = found[0]
    return member


async def _retried(tx: Transaction, known: _Name, new: NewArtifact, expect: int) -> Artifact:
    """Return the one version after `expect`, if it is what is to be saved."""
    if known.newest > expect:
        (members,) = await tx.read(_after(tx.keys, new.name, expect, 2))
        found = decode_member(members[0])
        if len(members) == 1 and (found.sha256, found.size, found.mime_type) == (new.sha256, new.size, new.mime_type):
            return found
    raise StaleArtifact(new.name, newest=known.newest)


def _check_room(held: Sequence[_Name], known: _Name, new: NewArtifact, room: int | None) -> None:
    """Refuse one name, version or byte too many."""
    where = "the user" if new.name.startswith("user:") else "the session"
    size = sum(one.bytes for one in held)
    if known.versions >= ARTIFACT_VERSIONS:
        raise TooLarge(f"{new.name!r} has {ARTIFACT_VERSIONS} versions, as many as there may be", param="name")
    if not known.name and len(held) >= ARTIFACT_NAMES:
        raise TooLarge(f"{where} has {ARTIFACT_NAMES} artifacts, as many as there may be", param="name")
    if sum(one.versions for one in held) >= ARTIFACTS:
        raise TooLarge(f"{where} has {ARTIFACTS} versions of artifacts, as many as there may be", param="name")
    if room is not None and size + new.size > room:
        raise TooLarge(
            f"{where} has {size} bytes of artifacts and would have {size + new.size} with this one; it may have {room}",
            param="data",
        )


def _put_name(tx: Transaction, before: _Name, after: _Name | None) -> None:
    if before.name:
        tx.do("ZREM", tx.keys.names, name_part(folded(before.name)) + pack(before))
    if after is not None:
        tx.do("ZADD", tx.keys.names, 0, name_part(folded(after.name)) + pack(after))


def _drop(tx: Transaction, members: Sequence[bytes]) -> None:
    for member in members:
        tx.do("ZREM", tx.keys.versions, member)
    release(tx, members)


def release(tx: Transaction, members: Sequence[bytes]) -> None:
    """Note that the contents of versions that go are not used any more."""
    for member in members:
        blob = decode_member(member).blob
        tx.do("HDEL", tx.keys.used, blob)
        tx.tell(b"b", blob.encode(), b"")
