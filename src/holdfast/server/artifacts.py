"""REST API for artifacts of a session: list, save, load and delete them.

Requests and responses contain the content of an artifact as raw bytes.
"""

from __future__ import annotations

import base64
import re
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from holdfast import errors
from holdfast.domain.artifact import NOTHING, USER, Artifact, ArtifactName, check_name
from holdfast.domain.objects import Answer, Count, Id, JsonObject, NonEmpty, Page, json_schema
from holdfast.domain.session import Session, SessionRef
from holdfast.limits import ARTIFACT_METADATA_BYTES
from holdfast.server.body_streams import read_chunks, read_first_chunk
from holdfast.server.http import Call
from holdfast.server.replies import Reply, make_error_body
from holdfast.server.routes import PageLimit, Routes, SessionQuery, describe_header, describe_headers
from holdfast.wire.artifacts import ArtifactObject
from holdfast.wire.strict_json import decode_json

routes = Routes("artifacts")
_ARTIFACTS: Final = "/v1/sessions/{session_id}/artifacts"
_ARTIFACT: Final = f"{_ARTIFACTS}/{{name}}"
_ETAG: Final = re.compile(r'"?([0-9]{1,18})(?:-([0-9a-f]{32}))?"?')
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.IGNORECASE)
_CURL_DEFAULT: Final = "application/x-www-form-urlencoded"
"""Content type that curl sends by default. It says nothing about the content."""
SAFETY_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox; default-src 'none'",
    "cache-control": "private, no-cache",
}
"""Headers that stop browsers from running stored content, which is untrusted, and from guessing its type."""


_GIVES: Final = describe_headers(ETag="the version and its content")
_ANY: Final[JsonObject] = {"*/*": {"schema": {"type": "string", "format": "binary"}}}


class ArtifactsQuery(SessionQuery, kw_only=True):
    """Query parameters of the list of artifacts."""

    name: ArtifactName | None = None
    """List the versions of this artifact, oldest first, instead of the newest version of each artifact."""
    limit: PageLimit = 20
    after: NonEmpty | None = None
    """`last_id` of the previous page, after which this page begins."""


class SaveQuery(SessionQuery, kw_only=True):
    """Query parameters for saving an artifact."""

    metadata: Annotated[
        str | None, json_schema(description=f"JSON object, at most {ARTIFACT_METADATA_BYTES} bytes")
    ] = None
    author: Id | None = None
    """Name of the author of the version."""


class VersionQuery(SessionQuery, kw_only=True):
    """Query parameters that select a version of an artifact."""

    version: Count | None = None
    """Number of the version."""


class ArtifactList(Page[ArtifactObject, ArtifactName]):
    """A page of artifacts."""


class ArtifactVersions(Page[ArtifactObject, Count]):
    """A page of versions."""


class DeletedArtifact(Answer, kw_only=True):
    """A deleted artifact."""

    object: Literal["artifact"] = "artifact"
    name: ArtifactName
    deleted: Literal[True] = True
    versions: Annotated[int, json_schema(minimum=1)]
    """Number of versions that were deleted."""
    bytes: Count
    """Total size, in bytes, of the versions that were deleted."""


@routes.add("GET", _ARTIFACTS, "read", answer=(ArtifactList, ArtifactVersions))
async def list_artifacts(call: Call, query: ArtifactsQuery, session: Session) -> ArtifactList | ArtifactVersions:
    """List the newest version of each artifact of a session, or all versions of one artifact.

    The session's own artifacts come first, then those of its user.
    """
    if query.name is None:
        found = await call.hf.artifacts.page(session.ref, limit=query.limit, after=query.after)
        objects = [ArtifactObject.from_artifact(one) for one in found.artifacts]
        return ArtifactList.of(objects, has_more=found.has_more, by="name")
    if query.after is not None and not re.fullmatch(r"[0-9]{1,18}", query.after):
        raise errors.InvalidRequest(f"after must be a version, a whole number, not {query.after!r:.80}", param="after")
    after = None if query.after is None else int(query.after)
    found = await call.hf.artifacts.versions(session.ref, query.name, limit=query.limit, after=after)
    objects = [ArtifactObject.from_artifact(one) for one in found.artifacts]
    return ArtifactVersions.of(objects, has_more=found.has_more, by="version")


@routes.add(
    "PUT",
    _ARTIFACT,
    "write",
    status=201,
    request_headers=(
        describe_header("If-Match", "version or ETag that the newest version must have; `*`: any version"),
        describe_header("If-None-Match", "`*`: the name must not exist yet"),
    ),
    response_headers=_GIVES,
    body=_ANY,
)
async def save(call: Call, query: SaveQuery) -> ArtifactObject:
    """Save the body as the next version of an artifact.

    The body is the content. `Content-Type` is its type; without this header, the type follows from the name. An artifact with a name
    that begins with `user:` is shared by all sessions of the user.

    With `If-Match`, the newest version must match. With `If-None-Match: *`, there must be no artifact of this name. If you repeat a
    request, you get the result of the first one.
    """
    session, name = await call.get_session(), check_name(call.path["name"])
    service = call.hf.artifacts
    expect = await _read_expected_version(call, session.ref, name)
    kind = call.get_header("content-type")
    limit = call.cap_body(service.settings.max_bytes, "the server's storage.artifacts.max_bytes")
    body = read_chunks(call.request, *limit)
    try:
        saved = await service.save(
            session.ref,
            name,
            body,
            mime_type=None if kind == _CURL_DEFAULT else kind or None,
            metadata=_parse_metadata(query.metadata),
            author=query.author,
            expect=expect,
        )
    finally:
        await body.aclose()
    call.answer_headers["etag"] = f'"{saved.etag}"'
    return ArtifactObject.from_artifact(saved)


@routes.add(
    "GET",
    _ARTIFACT,
    "read",
    error_statuses=(416,),
    request_headers=(
        describe_header("Range", "one range of bytes; several ranges return the whole content"),
        describe_header("If-Range", "ETag for which the range is meant"),
        describe_header("If-None-Match", "ETags that the client already has"),
    ),
    response_headers={
        **_GIVES,
        "X-Artifact-Version": {"description": "version", "schema": {"type": "integer", "minimum": 0}},
        **describe_headers(
            Content_Disposition="file name for saving",
            Repr_Digest="SHA-256 of the whole content (RFC 9530)",
        ),
    },
    answer=_ANY,
    others={206: "The requested range.", 304: "The content matches `If-None-Match`."},
)
async def load(call: Call, query: VersionQuery, session: Session) -> Reply:
    """Return the content of an artifact, or a range of the content.

    `version` selects a version; the default is the newest one. `HEAD` returns only the headers. The headers make browsers save the
    content instead of showing it.
    """
    artifact = await call.hf.artifacts.get(session.ref, call.path["name"], query.version)
    headers = {
        **SAFETY_HEADERS,
        "etag": f'"{artifact.etag}"',
        "x-artifact-version": str(artifact.version),
    }
    if _is_match(call.get_header("if-none-match"), artifact):
        return Reply(None, 304, headers)
    about = {
        "accept-ranges": "bytes",
        "content-type": artifact.mime_type,
        "content-disposition": format_disposition(artifact.name),
        "repr-digest": f"sha-256=:{base64.b64encode(artifact.sha256).decode()}:",
    }
    span = _parse_range(call, artifact)
    if span is None:
        body = make_error_body(
            f"the artifact has {artifact.size} bytes; the range is outside of them",
            kind="invalid_request_error",
            code="range",
        )
        return Reply(body, 416, {**headers, "content-range": f"bytes */{artifact.size}"})
    start, stop = span
    headers |= {**about, "content-length": str(stop - start)}
    part = (start, stop) != (0, artifact.size)
    if part:
        headers["content-range"] = f"bytes {start}-{stop - 1}/{artifact.size}"
    status = 206 if part else 200
    if call.request.method == "HEAD" or start == stop:
        return Reply(b"", status, headers)
    return Reply(await read_first_chunk(call.hf.artifacts.read(artifact, start, stop)), status, headers)


@routes.add("DELETE", _ARTIFACT, "write")
async def delete(call: Call, query: VersionQuery, session: Session) -> DeletedArtifact:
    """Delete an artifact with all of its versions. With `version`, delete only that version."""
    name = check_name(call.path["name"])
    deleted = await call.hf.artifacts.delete(session.ref, name, query.version)
    return DeletedArtifact(name=name, versions=len(deleted), bytes=sum(one.size for one in deleted))


# -- request headers ---------------------------------------------------------


def _parse_metadata(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = decode_json(text.encode())
    except errors.InvalidRequest as exc:
        raise errors.InvalidRequest(f"metadata: {exc}".replace("the body", "it"), param="metadata") from exc
    if not isinstance(found, dict):
        raise errors.InvalidRequest("metadata must be a JSON object", param="metadata")
    return found


async def _read_expected_version(call: Call, ref: SessionRef, name: str) -> int | None:
    """Return the number that the newest version must have, from `If-Match` and `If-None-Match`.

    Returns:
        The number. `NOTHING` if the artifact must not exist. None if any version is accepted.

    Raises:
        InvalidRequest: the headers are not valid.
        StaleArtifact: the artifact does not exist, or the ETag in `If-Match` has another content hash than the newest version.
    """
    match, none = call.get_header("if-match"), call.get_header("if-none-match")
    if none is not None:
        if match is not None or none.strip() != "*":
            message = "use either If-None-Match: * (the name does not exist yet) or If-Match with a version"
            raise errors.InvalidRequest(message, param="If-None-Match")
        return NOTHING
    if match is None:
        return None
    found = _ETAG.fullmatch(match.strip())
    if found is None and match.strip() != "*":
        raise errors.InvalidRequest("If-Match must be an artifact's ETag, its version, or *", param="If-Match")
    try:
        newest = await call.hf.artifacts.get(ref, name)
    except errors.ArtifactNotFound as exc:
        raise errors.StaleArtifact(name, newest=NOTHING) from exc
    if found is None:
        return None
    if newest.version == int(found[1]) and found[2] and not newest.etag.endswith(found[2]):
        raise errors.StaleArtifact(name, newest=newest.version)
    return int(found[1])


def _is_match(header: str | None, artifact: Artifact) -> bool:
    """Return True if the value of `If-None-Match` includes the ETag of this version, or is `*`."""
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/").strip('"') for tag in header.split(",")]
    return "*" in tags or artifact.etag in tags


def _parse_range(call: Call, artifact: Artifact) -> tuple[int, int] | None:
    """Return the requested range of bytes as (start, stop).

    Without a range, and if the range is ignored, the result covers the whole content. As RFC 9110 says, a range is ignored if it is
    not valid, if there are several, or if `If-Range` names another version. The result is None if the content has no bytes in the range.
    """
    whole = (0, artifact.size)
    if_range = call.get_header("if-range")
    found = _RANGE.fullmatch(call.get_header("range") or "")
    if found is None or found[0].endswith("=-") or (if_range is not None and if_range.strip() != f'"{artifact.etag}"'):
        return whole
    first, last = found[1], found[2]
    if not first:
        start, stop = max(0, artifact.size - int(last)), artifact.size
    elif last and int(last) < int(first):
        return whole
    else:
        start, stop = int(first), min(int(last) + 1, artifact.size) if last else artifact.size
    return (start, stop) if start < stop else None


# -- response headers --------------------------------------------------------


def format_disposition(name: str) -> str:
    """Return a `Content-Disposition` that makes browsers save the file. It has an ASCII name and the exact name."""
    plain = name.removeprefix(USER)
    ascii_name = re.sub(r"[^A-Za-z0-9 ._()@+-]", "_", plain)
    return f"attachment; filename=\"{ascii_name}\"; filename*=UTF-8''{quote(plain, safe='')}"
