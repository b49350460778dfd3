"""The part of the store contract about artifacts: their names, their versions, and the contents that the database keeps.

A name is unique in its scope, which is a session or all sessions of a user. The versions of a name are numbered from 0. A new
version gets the number after the highest one that the name ever had, deleted versions included. Numbering starts again at 0
when a name has no versions left. Names are in Unicode form NFC. Two names for which `holdfast.domain.artifact.fold_name`
returns the same text cannot exist at the same time.

The caller first stores a content under a key of its own, and then adds the artifact version that uses it. If that version is
dropped, is deleted with its session, or was never added, no artifact uses the content any more. `blobs_in_use` helps to find
such contents. A content is also called a blob; its key is a `blob` argument.

Adding an artifact changes neither the session's version nor its times. `remove` and `replace` delete a session's artifacts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec

from holdfast.domain.artifact import Artifact, ArtifactPage, NewArtifact, Scope, UserRef, fold_name
from holdfast.errors import ArtifactNotFound, StaleArtifact, StoreCorrupt
from holdfast.limits import BLOB_PART_BYTES
from holdfast.stores import checks
from holdfast.stores.logic.handle import Handle, get_first, read_session_row, reads
from holdfast.stores.logic.owners import OwnerKey, lock_owner
from holdfast.stores.logic.rows import ENDLESS, decode_text, encode_array
from holdfast.stores.logic.steps import Many, Query, Row, Rows, Steps
from holdfast.stores.scope_changes import KnownName, check_artifact_room, check_name, is_same_content

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Artifact).decode


class ArtifactStore(Handle):
    """Store artifacts: named contents with versions. The module docstring describes what all methods promise."""

    async def add_artifact(
        self,
        scope: Scope,
        new: NewArtifact,
        *,
        expect: int | None = None,
        room: int | None = None,
        identity: str | None = None,
    ) -> Artifact:
        """Add a version of a name, after the content of the version was stored.

        Args:
            scope: the session; the user if the name begins with `user:`.
            new: the version to add.
            expect: the number that the name's newest version must have; `NOTHING`: there must be no version; None: no check.
                If version `expect + 1` is the newest and has the same content and type, the call is a retry and returns that
                version.
            room: maximum bytes of all versions in the scope, this one included; None for no maximum.
            identity: the identity that the session must have, else `SessionNotFound`.

        Raises:
            SessionNotFound: no such session.
            Conflict: an existing name differs from this one only in case or Unicode form.
            StaleArtifact: the newest version is not `expect`.
            TooLarge: too many names, versions or bytes; the message says which.
        """
        checks.check_artifact(scope, new)
        steps = partial(_add_artifact, self.tenant, scope, new, expect, room, identity=identity)
        return await self._write(steps, scope)

    @reads()
    def artifact(self, scope: Scope, name: str, version: int | None = None) -> Steps[Artifact]:
        """Return one version of a name, the newest by default.

        Raises:
            ArtifactNotFound: the name or the version does not exist.
            SessionNotFound: the scope is a session that does not exist.
        """
        checks.check_scope(scope, name)
        place = yield from _locate_scope(self.tenant, scope)
        known = yield from _require_name(place, name, version)
        number = known.newest if version is None else version
        rows = yield Query("artifact_get", (*place, fold_name(name), number))
        if not rows:
            raise ArtifactNotFound(name, version)
        return _decode_artifact(rows[0])

    @reads()
    def artifacts(self, scope: Scope, *, limit: int = 100, after: str | None = None) -> Steps[ArtifactPage]:
        """Return the newest version of each name, ordered by name without regard to case.

        Args:
            scope: the session or user.
            limit: maximum number of names, 1 to `PAGE`.
            after: return the names after this one, which need not exist.

        Raises:
            SessionNotFound: the scope is a session that does not exist.
        """
        checks.check_scope(scope, after)
        checks.check_limit(limit)
        place = yield from _locate_scope(self.tenant, scope)
        rows = yield Query("artifacts_newest", (*place, "" if after is None else fold_name(after), limit + 1))
        return ArtifactPage(_decode_all(rows[:limit]), len(rows) > limit)

    @reads()
    def artifact_versions(
        self, scope: Scope, name: str, *, limit: int = 100, after: int | None = None
    ) -> Steps[ArtifactPage]:
        """Return the versions of a name that are higher than `after`, in order.

        Raises:
            ArtifactNotFound: the name does not exist.
            SessionNotFound: the scope is a session that does not exist.
        """
        checks.check_scope(scope, name)
        checks.check_limit(limit)
        place = yield from _locate_scope(self.tenant, scope)
        yield from _require_name(place, name)
        key = (*place, fold_name(name), -1 if after is None else after)
        rows = yield Query("artifact_versions", (*key, limit + 1))
        return ArtifactPage(_decode_all(rows[:limit]), len(rows) > limit)

    @reads()
    def all_artifacts(self, scope: Scope) -> Steps[tuple[Artifact, ...]]:
        """Return all versions of all names, as of one moment. Raises `SessionNotFound` if the scope is a session that does not exist."""
        checks.check_scope(scope)
        place = yield from _locate_scope(self.tenant, scope)
        return _decode_all((yield Query("artifacts_all", place)))

    async def drop_artifacts(
        self, scope: Scope, name: str | None = None, version: int | None = None
    ) -> tuple[Artifact, ...]:
        """Delete a version, a name with all its versions, or everything in a scope; return the deleted versions.

        Their contents stay stored; the caller deletes them with `delete_blobs`. Raises `ArtifactNotFound` if the name or
        version does not exist, and `SessionNotFound`.
        """
        checks.check_scope(scope, name)
        return await self._write(partial(_drop_artifacts, self.tenant, scope, name, version), scope, scrub=True)

    async def blobs_in_use(self, blobs: Sequence[str]) -> frozenset[str]:
        """Return those of the given content keys that artifacts of the tenant refer to. A call accepts at most `PAGE` keys."""
        checks.check_blobs(blobs)
        return frozenset(await self._select(_decode_key, "blobs_in_use", encode_array(blobs)))

    async def put_blob(self, blob: str, part: int, data: bytes, *, timestamp: int) -> None:
        """Store one part of a content, replacing the part with the same index if there is one.

        Args:
            blob: the content's key.
            part: the part's index, from 0.
            data: the part's bytes, at most `BLOB_PART_BYTES`.
            timestamp: milliseconds since the epoch.
        """
        checks.check_blobs((blob,))
        checks.check_size(len(data), "data", BLOB_PART_BYTES)
        await self._execute("blob_put", blob, part, timestamp, data)

    async def blob(self, blob: str, part: int) -> bytes | None:
        """Return one part of a content; None if that part is not stored."""
        checks.check_blobs((blob,))
        return await self._select_one(get_first, "blob_get", blob, part)

    async def delete_blobs(self, blobs: Sequence[str]) -> None:
        """Delete contents; keys without a content are ignored."""
        checks.check_blobs(blobs)

        def steps() -> Steps[None]:
            yield Many("blob_delete", [(self.tenant, blob) for blob in blobs])

        await self._write(steps, scrub=True)

    async def blobs(self, *, before: int, after: str = "", limit: int = 100) -> tuple[str, ...]:
        """Return content keys in order. The keys come after `after`, and the last part of each content was written before `before`.

        `before` is in milliseconds since the epoch.
        """
        return await self._select(_decode_key, "blobs_before", before, after, limit)


def _decode_key(row: Row) -> str:
    return decode_text(row[0])


def _locate_scope(tenant: str, scope: Scope) -> Steps[Row]:
    """Return the key columns that all rows of a scope share. Raises `SessionNotFound` if the session does not exist."""
    if isinstance(scope, UserRef):
        return 0, tenant, scope.user_id
    row = yield from read_session_row(tenant, scope)
    return row[0], tenant, scope.user_id


def _lock_scope(tenant: str, scope: Scope, identity: str | None = None) -> Steps[Row]:
    """Lock a scope until the transaction ends, so that what is read of it afterwards stays true. Return the key columns of the scope.

    Raises:
        SessionNotFound: the session does not exist, or has another identity.
    """
    if isinstance(scope, UserRef):
        yield from lock_owner(_make_owner_key(tenant, scope))
        return 0, tenant, scope.user_id
    row = yield from read_session_row(tenant, scope, identity)
    return row[0], tenant, scope.user_id


def _make_owner_key(tenant: str, user: UserRef) -> OwnerKey:
    return OwnerKey(tenant, "artifacts", user.user_id)


def _decode_artifact(row: Row) -> Artifact:
    try:
        return _decode(row[0])
    except msgspec.MsgspecError as exc:
        raise StoreCorrupt(f"an artifact is damaged and cannot be decoded ({exc})") from exc


def _decode_all(rows: Rows) -> tuple[Artifact, ...]:
    """Decode versions. Damaged ones are left out, so that their session can be deleted; a sweep deletes their contents."""
    found = []
    for row in rows:
        with suppress(StoreCorrupt):
            found.append(_decode_artifact(row))
    return tuple(found)


def _read_name(place: Row, name: str) -> Steps[KnownName]:
    """Return the stored name that equals `name` after folding (`fold_name`); an empty `KnownName` if there is none."""
    rows = yield Query("artifact_newest", (*place, fold_name(name)))
    if not rows:
        return KnownName()
    newest = _decode_artifact(rows[0])
    return KnownName(newest.name, newest.version, rows[0][1])


def _require_name(place: Row, name: str, version: int | None = None) -> Steps[KnownName]:
    known = yield from _read_name(place, name)
    if known.name != name:
        raise ArtifactNotFound(name, version, called=known.name or None)
    return known


# -- naming ------------------------------------------------------------------


def _add_artifact(
    tenant: str, scope: Scope, new: NewArtifact, expect: int | None, room: int | None, *, identity: str | None
) -> Steps[Artifact]:
    place = yield from _lock_scope(tenant, scope, identity)
    known = yield from _read_name(place, new.name)
    check_name(known, new)
    if expect is not None and expect != known.newest:
        return (yield from _find_earlier_attempt(place, known, new, expect))
    folded = fold_name(new.name)
    totals = (yield Query("artifact_totals", (*place, folded)))[0]
    check_artifact_room(known, new, totals=tuple(totals), room=room)
    number = known.highest + 1
    artifact = Artifact(version=number, **{name: getattr(new, name) for name in new.__struct_fields__})
    yield Query("artifact_insert", (*place, folded, number, number, new.blob, new.size, _encode(artifact)))
    return artifact


def _find_earlier_attempt(place: Row, known: KnownName, new: NewArtifact, expect: int) -> Steps[Artifact]:
    """Return the version `expect + 1` if it is the newest one and has the same content as `new`, which shows that this call is a retry.

    Raises:
        StaleArtifact: in all other cases.
    """
    if known.newest > expect:
        rows = yield Query("artifact_versions", (*place, fold_name(new.name), expect, 2))
        found = _decode_artifact(rows[0])
        if len(rows) == 1 and is_same_content(found, new):
            return found
    raise StaleArtifact(new.name, newest=known.newest)


# -- dropping ----------------------------------------------------------------


def _drop_artifacts(tenant: str, scope: Scope, name: str | None, version: int | None) -> Steps[tuple[Artifact, ...]]:
    place = yield from _lock_scope(tenant, scope)
    if name is None:
        rows = yield Query("artifacts_all", place)
    else:
        known = yield from _require_name(place, name, version)
        rows = yield Query("artifact_versions", (*place, fold_name(name), -1, ENDLESS))
    found = _decode_all(rows)
    left = [one for one in found if version not in {None, one.version}]
    if name is not None and len(left) == len(found):
        raise ArtifactNotFound(name, version)
    if name is None:
        yield Query("artifacts_clear", place)
    elif left:
        yield Query("artifact_delete", (*place, fold_name(name), version))
        yield Query("artifact_raise", (*place, fold_name(name), left[-1].version, known.highest))
    else:
        yield Query("artifact_versions_delete", (*place, fold_name(name)))
    if name is None and isinstance(scope, UserRef):
        owner = yield from lock_owner(_make_owner_key(tenant, scope))
        yield Query("owner_delete", (owner.pk,))
    return tuple(one for one in found if one not in left)
