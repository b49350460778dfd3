"""What is asked for artifacts: their names, their versions, and contents that the database keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.domain.artifact import NOTHING, Artifact, ArtifactPage, NewArtifact, Scope, UserRef, folded
from holdfast.errors import ArtifactNotFound, Conflict, SessionNotFound, StaleArtifact, TooLarge
from holdfast.limits import ARTIFACT_NAMES, ARTIFACT_VERSIONS, ARTIFACTS
from holdfast.stores.logic.reads import session_row
from holdfast.stores.logic.rows import ENDLESS, array_of, artifact_of, artifact_row, session_of, text_of
from holdfast.stores.logic.steps import Many, Query, Row, Steps


class _Name(NamedTuple):
    """A name that is in use: the columns of `artifact_name_get`, decoded."""

    name: str = ""
    next_version: int = 0
    newest: int = NOTHING
    versions: int = 0
    bytes: int = 0


def _place(tenant: str, scope: Scope, identity: str | None = None) -> Steps[Row]:
    """The columns that a scope's rows have in common; raises `SessionNotFound`."""
    if isinstance(scope, UserRef):
        return 0, tenant, scope.user_id
    row = yield from session_row(tenant, scope)
    if identity not in {None, session_of(row).identity}:
        raise SessionNotFound(scope.id)
    return row[0], tenant, scope.user_id


def _name(place: Row, name: str) -> Steps[_Name]:
    """What is known of a name, or of the one that stands in its way; nothing when it is free."""
    rows = yield Query("artifact_name_get", (*place, folded(name)))
    return _Name(text_of(rows[0][0]), *rows[0][1:]) if rows else _Name()


def _known(place: Row, name: str, version: int | None = None) -> Steps[_Name]:
    known = yield from _name(place, name)
    if known.name != name:
        raise ArtifactNotFound(name, version, called=known.name or None)
    return known


def _version(place: Row, name: str, version: int) -> Steps[Artifact]:
    rows = yield Query("artifact_get", (*place, folded(name), version))
    if not rows:
        raise ArtifactNotFound(name, version)
    return artifact_of(rows[0])


# -- reading -----------------------------------------------------------------


def artifact(tenant: str, scope: Scope, name: str, version: int | None) -> Steps[Artifact]:
    """See `ArtifactStore.artifact`."""
    place = yield from _place(tenant, scope)
    known = yield from _known(place, name, version)
    return (yield from _version(place, name, known.newest if version is None else version))


def artifacts(tenant: str, scope: Scope, limit: int, after: str | None) -> Steps[ArtifactPage]:
    """See `ArtifactStore.artifacts`."""
    place = yield from _place(tenant, scope)
    rows = yield Query("artifacts_newest", (*place, "" if after is None else folded(after), limit + 1))
    return ArtifactPage(tuple(artifact_of(row) for row in rows[:limit]), len(rows) > limit)


def versions(tenant: str, scope: Scope, name: str, limit: int, after: int | None) -> Steps[ArtifactPage]:
    """See `ArtifactStore.artifact_versions`."""
    place = yield from _place(tenant, scope)
    yield from _known(place, name)
    rows = yield Query("artifact_versions", (*place, folded(name), -1 if after is None else after, limit + 1))
    return ArtifactPage(tuple(artifact_of(row) for row in rows[:limit]), len(rows) > limit)


def blobs_in_use(tenant: str, blobs: Sequence[str]) -> Steps[frozenset[str]]:
    """See `ArtifactStore.blobs_in_use`."""
    rows = yield Query("blobs_in_use", (tenant, array_of(blobs)))
    return frozenset(text_of(row[0]) for row in rows)


# -- naming ------------------------------------------------------------------


def add(
    tenant: str, scope: Scope, new: NewArtifact, expect: int | None, room: int | None, *, identity: str | None
) -> Steps[Artifact]:
    """See `ArtifactStore.add_artifact`."""
    # Before the session is looked for: an attempt whose outcome nobody knew is run again, and may have been done.
    done = yield Query("artifact_of_blob", (tenant, new.blob))
    if done:
        return artifact_of(done[0])
    place = yield from _place(tenant, scope, identity)
    known = yield from _name(place, new.name)
    if known.name not in ("", new.name):
        raise Conflict(
            f"{new.name!r} differs from the artifact {known.name!r} in case or Unicode form alone:"
            " save it under that name, or under one that is more different"
        )
    if expect is not None and expect != known.newest:
        return (yield from _retried(place, known, new, expect))
    yield from _check_room(place, known, new, room)
    yield Query("artifact_insert", artifact_row(place, folded(new.name), new, known.next_version))
    after = _Name(new.name, known.next_version + 1, known.next_version, known.versions + 1, known.bytes + new.size)
    yield Query("artifact_name_put", (*place, folded(new.name), *after))
    return Artifact(version=known.next_version, **{name: getattr(new, name) for name in new.__struct_fields__})


def _retried(place: Row, known: _Name, new: NewArtifact, expect: int) -> Steps[Artifact]:
    """The one version behind `expect`, if it is what is to be saved."""
    if known.newest > expect:
        rows = yield Query("artifact_versions", (*place, folded(new.name), expect, 2))
        found = artifact_of(rows[0])
        if len(rows) == 1 and (found.sha256, found.size, found.mime_type) == (new.sha256, new.size, new.mime_type):
            return found
    raise StaleArtifact(new.name, newest=known.newest)


def _check_room(place: Row, known: _Name, new: NewArtifact, room: int | None) -> Steps[None]:
    """Refuse one name, version or byte too many."""
    names, held, size = (yield Query("artifact_totals", place))[0]
    where = "the user" if new.name.startswith("user:") else "the session"
    if known.versions >= ARTIFACT_VERSIONS:
        raise TooLarge(f"{new.name!r} has {ARTIFACT_VERSIONS} versions, as many as there may be", param="name")
    if not known.name and names >= ARTIFACT_NAMES:
        raise TooLarge(f"{where} has {ARTIFACT_NAMES} artifacts, as many as there may be", param="name")
    if held >= ARTIFACTS:
        raise TooLarge(f"{where} has {ARTIFACTS} versions of artifacts, as many as there may be", param="name")
    if room is not None and size + new.size > room:
        raise TooLarge(
            f"{where} has {size} bytes of artifacts and would have {size + new.size} with this one; it may have {room}",
            param="data",
        )


# -- taking away -------------------------------------------------------------


def drop(tenant: str, scope: Scope, name: str | None, version: int | None) -> Steps[tuple[Artifact, ...]]:
    """See `ArtifactStore.drop_artifacts`."""
    place = yield from _place(tenant, scope)
    if name is None:
        gone = tuple(artifact_of(row) for row in (yield Query("artifacts_all", place)))
        keys = [(*place, key) for key in dict.fromkeys(folded(one.name) for one in gone)]
        if keys:
            yield Many("artifact_versions_delete", keys)
            yield Many("artifact_name_delete", keys)
        return gone
    key = folded(name)
    known = yield from _known(place, name, version)
    if version is None:
        rows = yield Query("artifact_versions", (*place, key, -1, ENDLESS))
        yield Query("artifact_versions_delete", (*place, key))
        yield Query("artifact_name_delete", (*place, key))
        return tuple(artifact_of(row) for row in rows)
    found = yield from _version(place, name, version)
    yield Query("artifact_delete", (*place, key, version))
    if known.versions == 1:
        yield Query("artifact_name_delete", (*place, key))
    else:
        last = (yield Query("artifact_last", (*place, key)))[0][0]
        after = known._replace(newest=last, versions=known.versions - 1, bytes=known.bytes - found.size)
        yield Query("artifact_name_put", (*place, key, *after))
    return (found,)


# -- contents ----------------------------------------------------------------


def put_blob(tenant: str, blob: str, part: int, data: bytes, timestamp: int) -> Steps[None]:
    """See `ArtifactStore.put_blob`."""
    yield Query("blob_put", (tenant, blob, part, timestamp, data))


def blob_part(tenant: str, blob: str, part: int) -> Steps[bytes | None]:
    """See `ArtifactStore.blob`."""
    rows = yield Query("blob_get", (tenant, blob, part))
    return rows[0][0] if rows else None


def delete_blobs(tenant: str, blobs: Sequence[str]) -> Steps[None]:
    """See `ArtifactStore.delete_blobs`."""
    yield Many("blob_delete", [(tenant, blob) for blob in blobs])


def blobs(tenant: str, before: int, after: str, limit: int) -> Steps[tuple[str, ...]]:
    """See `ArtifactStore.blobs`."""
    rows = yield Query("blobs_before", (tenant, before, after, limit))
    return tuple(text_of(row[0]) for row in rows)
