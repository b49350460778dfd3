"""Pages about artifacts: lists, versions, a preview of the content, and downloads that browsers never run."""

from __future__ import annotations

from typing import Final, Literal

from holdfast.domain.artifact import Artifact, ArtifactName, Scope, UserRef, check_name
from holdfast.domain.objects import Count, Id
from holdfast.server.artifacts import SAFETY_HEADERS, format_disposition
from holdfast.server.body_streams import read_first_chunk
from holdfast.server.http import Call
from holdfast.server.inspector.access import redirect
from holdfast.server.inspector.frame import HTML, PageQuery, Pages, Values, check_content, make_path, make_url
from holdfast.server.inspector.session import SESSION
from holdfast.server.limits import INSPECTOR_IMAGE_BYTES, INSPECTOR_TEXT_CHARS
from holdfast.server.replies import Reply
from holdfast.wire.artifacts import ArtifactObject

routes = Pages()
_LISTED: Final = 50
_VERSIONS: Final = 100
"""Versions that a page lists."""
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Types of images that a page shows. Artifacts of these types have the right first bytes. SVG is not safe, because it can contain scripts."""


class ArtifactsQuery(PageQuery, kw_only=True):
    """Query parameters of the list of artifacts."""

    user_id: Id | None = None
    session_id: Id | None = None
    """Session whose artifacts to open."""
    after: ArtifactName | None = None


class ArtifactQuery(PageQuery, kw_only=True):
    """Query parameters of the page of an artifact."""

    user_id: Id | None = None
    version: Count | None = None


class ContentQuery(ArtifactQuery, kw_only=True):
    """Query parameters of the content of an artifact."""

    view: Literal["image", "download"] = "download"


@routes.page("/inspect/artifacts", "read", "artifacts.html", "Artifacts")
async def show_artifacts(call: Call, query: ArtifactsQuery) -> Values:
    """Return the artifacts that all sessions of a user share, and the user's last sessions, which have artifacts of their own."""
    if query.session_id is not None:
        path = make_path("/inspect/sessions/{session_id}/state", session_id=query.session_id)
        return redirect(f"{make_url(path, user_id=query.user_id)}#artifacts")
    user = call.get_owner_or_default(query.user_id)
    page = await call.hf.artifacts.page(UserRef(user), limit=_LISTED, after=query.after)
    sessions = await call.hf.sessions(user_id=user, limit=12)
    return {
        "user": user,
        "artifacts": [ArtifactObject.from_artifact(one) for one in page.artifacts],
        "sessions": sessions.sessions,
        "more": {"user_id": user, "after": page.artifacts[-1].name} if page.has_more else None,
    }


# -- one artifact ------------------------------------------------------------------


@routes.page("/inspect/artifacts/{name}", "read", "artifact.html")
@routes.page(f"{SESSION}/artifacts/{{name}}", "read", "artifact.html")
async def show_artifact(call: Call, query: ArtifactQuery) -> Values:
    """Return a version of an artifact: what is known about it, a preview, and the other versions."""
    scope = await _find_scope(call, query)
    name = check_name(call.path["name"])
    artifact = await call.hf.artifacts.get(scope, name, query.version)
    versions = await call.hf.artifacts.versions(scope, name, limit=_VERSIONS)
    session = None if isinstance(scope, UserRef) else scope
    # Only the routes of a session delete artifacts. Any session of the user can delete what they share.
    some = (await call.hf.sessions(user_id=scope.user_id, limit=1)).sessions if session is None else (session,)
    path = call.request.scope["path"]
    return {
        "title": name,
        "session": session,
        "artifact": ArtifactObject.from_artifact(artifact),
        "versions": [ArtifactObject.from_artifact(one) for one in reversed(versions.artifacts)],
        "has_more": versions.has_more,
        "text": await _read_text(call, artifact),
        "is_image": _is_image(artifact),
        "session_id": some[0].id if some else None,
        "user_id": scope.user_id,
        "content_url": make_url(f"{path}/content", user_id=query.user_id, version=artifact.version),
        "image_url": make_url(f"{path}/content", user_id=query.user_id, version=artifact.version, view="image"),
    }


@routes.add("GET", "/inspect/artifacts/{name}/content", "read", answer=HTML)
@routes.add("GET", f"{SESSION}/artifacts/{{name}}/content", "read", answer=HTML)
async def get_content(call: Call, query: ContentQuery) -> Reply:
    """Return the content of an artifact. Browsers save it, except for a safe image that a page shows."""
    check_content(call)
    artifact = await call.hf.artifacts.get(await _find_scope(call, query), check_name(call.path["name"]), query.version)
    headers = {**SAFETY_HEADERS, "content-type": artifact.mime_type, "content-length": str(artifact.size)}
    headers["cache-control"] = "no-store"
    if query.view == "download" or not _is_image(artifact):
        headers["content-disposition"] = format_disposition(artifact.name)
    if artifact.size == 0:
        return Reply(b"", 200, headers)
    return Reply(await read_first_chunk(call.hf.artifacts.read(artifact, 0, artifact.size)), 200, headers)


async def _find_scope(call: Call, query: ArtifactQuery) -> Scope:
    """Return the session in the path, or the user whose sessions share the artifact, if the caller may read it."""
    if "session_id" in call.path:
        return (await call.get_session()).ref
    return UserRef(call.get_owner_or_default(query.user_id))


def _is_image(artifact: Artifact) -> bool:
    """Return True if browsers may show the content as an image."""
    return artifact.mime_type in _IMAGES and 0 < artifact.size <= INSPECTOR_IMAGE_BYTES


async def _read_text(call: Call, artifact: Artifact) -> str | None:
    """Return the beginning of the content as text, or None if it is not text."""
    size = min(artifact.size, 4 * INSPECTOR_TEXT_CHARS)
    data = b"".join([chunk async for chunk in call.hf.artifacts.read(artifact, 0, size)])
    cut = artifact.size > len(data)
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        # The cut may be within a character.
        if not cut or exc.start < len(data) - 3:
            return None
        text = data[: exc.start].decode()
    return None if "\0" in text else text
