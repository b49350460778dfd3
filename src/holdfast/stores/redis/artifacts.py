"""Artifacts of a session or user in Redis.

Each scope has two sorted sets. One contains the names of its artifacts, sorted by folded name. The other one contains the versions of all its
artifacts, sorted by folded name and version number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.domain.artifact import Artifact, ArtifactPage, NewArtifact, Scope, UserRef, fold_name
from holdfast.errors import ArtifactNotFound, SessionNotFound, StaleArtifact
from holdfast.stores import checks
from holdfast.stores.redis.connection import Command
from holdfast.stores.redis.database import Transaction
from holdfast.stores.redis.handle import Handle, read_transaction, resolve_session_keys, write_transaction
from holdfast.stores.redis.keys import ScopeKeys, SessionKeys, encode_name, encode_number
from holdfast.stores.redis.records import decode_artifact, encode_artifact, pack, unpack_list
from holdfast.stores.scope_changes import KnownName, add_version, check_artifact_room, check_name, is_same_content

_PREFIX_END: Final = b"\xff" * 9
"""A prefix followed by these bytes is an upper bound for all members that begin with the prefix."""


def resolve_scope_keys(handle: Handle, scope: Scope) -> ScopeKeys:
    """Return the keys of the scope that is passed as a method's first argument."""
    if isinstance(scope, UserRef):
        checks.check_scope(scope)
        return handle.database.keys.user(handle.tenant, scope.user_id)
    return resolve_session_keys(handle, scope)


class ArtifactMethods(Handle):
    """The methods of `holdfast.stores.artifacts.ArtifactStore`."""

    @write_transaction(resolve_scope_keys)
    async def add_artifact(
        self,
        tx: Transaction,
        scope: Scope,
        new: NewArtifact,
        *,
        expect: int | None = None,
        room: int | None = None,
        identity: str | None = None,
    ) -> Artifact:
        checks.check_artifact(scope, new)
        keys = tx.keys
        done, names = await tx.read((b"HGET", keys.used, new.blob), (b"ZRANGEBYLEX", keys.names, b"-", b"+"))
        # Checked before the session exists: an attempt with an unknown outcome may have succeeded and is run again.
        if done is not None:
            return decode_member(done)
        tx.check(keys.used, new.blob, None)
        _check_scope(tx, identity)
        stored_names = [_decode_name(member) for member in names]
        known = next((one for one in stored_names if fold_name(one.name) == fold_name(new.name)), KnownName())
        check_name(known, new)
        if expect is not None and expect != known.newest:
            return await _find_retried(tx, known, new, expect)
        versions, size = sum(one.versions for one in stored_names), sum(one.bytes for one in stored_names)
        check_artifact_room(known, new, names=len(stored_names), versions=versions, size=size, room=room)
        artifact, after = add_version(known, new)
        member = encode_name(fold_name(new.name)) + encode_number(artifact.version) + encode_artifact(artifact)
        tx.queue("ZADD", keys.versions, 0, member)
        tx.queue("HSET", keys.used, new.blob, member)
        tx.add_news(b"b", new.blob.encode(), b"1")
        _put_name(tx, known, after)
        if tx.record is not None and not tx.record.artifacts:
            tx.update_record(artifacts=True)
        return artifact

    @read_transaction(resolve_scope_keys)
    async def artifact(self, tx: Transaction, scope: Scope, name: str, version: int | None = None) -> Artifact:
        checks.check_scope(scope, name)
        known = await _read_name(tx, name, version)
        return decode_member(await _read_version(tx, name, known.newest if version is None else version))

    @read_transaction(resolve_scope_keys)
    async def artifacts(
        self, tx: Transaction, scope: Scope, *, limit: int = 100, after: str | None = None
    ) -> ArtifactPage:
        checks.check_scope(scope, after)
        checks.check_limit(limit)
        begin = b"(" + encode_name(fold_name(after)) + _PREFIX_END if after else b"-"
        (members,) = await tx.read((b"ZRANGEBYLEX", tx.keys.names, begin, b"+", b"LIMIT", 0, limit + 1))
        _check_scope(tx)
        names = [_decode_name(member) for member in members[:limit]]
        found = await tx.read(*(_make_prefix_range(tx.keys.versions, one.name, one.newest) for one in names))
        return ArtifactPage(tuple(decode_member(some[0]) for some in found), len(members) > limit)

    @read_transaction(resolve_scope_keys)
    async def artifact_versions(
        self, tx: Transaction, scope: Scope, name: str, *, limit: int = 100, after: int | None = None
    ) -> ArtifactPage:
        checks.check_scope(scope, name)
        checks.check_limit(limit)
        await _read_name(tx, name)
        (found,) = await tx.read(_make_versions_after(tx.keys, name, -1 if after is None else after, limit + 1))
        return ArtifactPage(tuple(decode_member(member) for member in found[:limit]), len(found) > limit)

    @write_transaction(resolve_scope_keys)
    async def drop_artifacts(
        self, tx: Transaction, scope: Scope, name: str | None = None, version: int | None = None
    ) -> tuple[Artifact, ...]:
        checks.check_scope(scope, name)
        keys = tx.keys
        if name is None:
            (members,) = await tx.read(make_versions_command(keys))
            _check_scope(tx)
            if members:
                _remove_versions(tx, members)
                tx.queue("UNLINK", keys.names)
            return tuple(map(decode_member, members))
        known = await _read_name(tx, name, version)
        (members,) = await tx.read(_make_prefix_range(keys.versions, name))
        dropped = members if version is None else [await _read_version(tx, name, version)]
        _remove_versions(tx, dropped)
        left = [decode_member(member) for member in members if member not in dropped]
        size = sum(one.size for one in left)
        _put_name(tx, known, KnownName(name, known.next_version, left[-1].version, len(left), size) if left else None)
        return tuple(map(decode_member, dropped))

    @read_transaction()
    async def blobs_in_use(self, tx: Transaction, blobs: Sequence[str]) -> frozenset[str]:
        checks.check_blobs(blobs)
        return frozenset(await tx.read_fields((await self._tidy()).used, blobs))


# -- commands and members --------------------------------------------------------
# The member of a version consists of the folded name, the number, and the encoded version. The member of a name consists of the
# folded name and the encoded `KnownName`.


def make_versions_command(keys: ScopeKeys) -> Command:
    """Return the command that reads all artifact versions of a scope."""
    return (b"ZRANGEBYLEX", keys.versions, b"-", b"+")


def _make_prefix_range(key: bytes, name: str, version: int | None = None) -> Command:
    begin = encode_name(fold_name(name)) + (b"" if version is None else encode_number(version))
    return (b"ZRANGEBYLEX", key, b"[" + begin, b"(" + begin + _PREFIX_END)


def _make_versions_after(keys: ScopeKeys, name: str, version: int, limit: int) -> Command:
    begin = encode_name(fold_name(name))
    ends = (b"(" + begin + encode_number(version) + _PREFIX_END, b"(" + begin + _PREFIX_END)
    return (b"ZRANGEBYLEX", keys.versions, *ends, b"LIMIT", 0, limit)


def decode_member(member: bytes) -> Artifact:
    """Decode the artifact version in a member of the sorted set of versions."""
    return decode_artifact(member[member.index(b"\0\1") + 2 + 8 :])


def _decode_name(member: bytes) -> KnownName:
    return KnownName(*unpack_list(member[member.index(b"\0\1") + 2 :]))


# -- parts ---------------------------------------------------------------------


def _check_scope(tx: Transaction, identity: str | None = None) -> None:
    """Raise `SessionNotFound` if the scope is a session that does not exist, or that has another identity."""
    if isinstance(tx.keys, SessionKeys) and (tx.record is None or identity not in {None, tx.record.session.identity}):
        raise SessionNotFound(tx.keys.id)


async def _read_name(tx: Transaction, name: str, version: int | None = None) -> KnownName:
    (members,) = await tx.read(_make_prefix_range(tx.keys.names, name))
    _check_scope(tx)
    known = _decode_name(members[0]) if members else KnownName()
    if known.name != name:
        raise ArtifactNotFound(name, version, called=known.name or None)
    return known


async def _read_version(tx: Transaction, name: str, version: int) -> bytes:
    (found,) = await tx.read(_make_prefix_range(tx.keys.versions, name, version))
    if not found:
        raise ArtifactNotFound(name, version)
    member: bytes = found[0]
    return member


async def _find_retried(tx: Transaction, known: KnownName, new: NewArtifact, expect: int) -> Artifact:
    """Return the version that an earlier attempt at the same write stored.

    It is recognised by two conditions: it is the only version after `expect`, and it has the same content as `new`.

    Raises:
        StaleArtifact: there is no such version.
    """
    if known.newest > expect:
        (members,) = await tx.read(_make_versions_after(tx.keys, new.name, expect, 2))
        found = decode_member(members[0])
        if len(members) == 1 and is_same_content(found, new):
            return found
    raise StaleArtifact(new.name, newest=known.newest)


def _put_name(tx: Transaction, before: KnownName, after: KnownName | None) -> None:
    if before.name:
        tx.queue("ZREM", tx.keys.names, encode_name(fold_name(before.name)) + pack(before))
    if after is not None:
        tx.queue("ZADD", tx.keys.names, 0, encode_name(fold_name(after.name)) + pack(after))


def _remove_versions(tx: Transaction, members: Sequence[bytes]) -> None:
    for member in members:
        tx.queue("ZREM", tx.keys.versions, member)
    release_contents(tx, members)


def release_contents(tx: Transaction, members: Sequence[bytes]) -> None:
    """Record that contents are no longer in use, because the versions that used them were deleted.

    Args:
        tx: the write.
        members: the deleted members of the sorted set of versions.
    """
    for member in members:
        blob = decode_member(member).blob
        tx.queue("HDEL", tx.keys.used, blob)
        tx.add_news(b"b", blob.encode(), b"")
