"""Store ADK's artifacts as artifacts of a session or a user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from google.adk.artifacts import artifact_util
from google.adk.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService, ensure_part
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types

import holdfast
from holdfast.adapters.adk.names import USER, decode_name, encode_name
from holdfast.adapters.adk.tenant import TenantService, ensure_session
from holdfast.errors import ArtifactNotFound, Conflict, InvalidRequest, SessionNotFound, TooLarge, UnsupportedType

T = TypeVar("T")
Json = dict[str, Any]
PART: Final = "adk_part"
"""Key in an artifact's metadata under which the part is stored, without the part's bytes or text."""
CUSTOM: Final = "adk_custom"
"""Key in an artifact's metadata under which ADK's `custom_metadata` is stored."""
MAX_REFERENCES: Final = 5
"""Maximum number of references from one artifact to the next that are followed, as in ADK's own services."""
_BYTES: Final = "application/octet-stream"


class HoldfastArtifactService(TenantService, BaseArtifactService):
    """Stores the artifacts of sessions and users.

    A session's artifacts are deleted with the session. Artifacts whose names begin with `user:` belong to the user and need no session. A
    session need not exist when an artifact is saved: if it is created later, it has the artifact.
    """

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Save a version of an artifact, and return its number, from 0.

        Raises:
            InputValidationError: the artifact, its name or its size is not allowed, or a session is needed.
        """
        part = ensure_part(artifact)
        data, kind = _read_part(part)
        _check_reference(part, app_name, user_id, session_id)
        metadata = {PART: _describe(part), **({CUSTOM: custom_metadata} if custom_metadata else {})}

        async def save(hf: holdfast.Holdfast) -> int:
            if session_id is not None and not filename.startswith(USER):
                await ensure_session(hf, session_id.strip(), user_id)
            artifacts = await _open(hf, user_id, filename, session_id)
            name = encode_name(filename)
            try:
                saved = await artifacts.save(name, data, mime_type=kind, metadata=metadata)
            except UnsupportedType:  # the bytes are not of the type, but ADK may store them
                saved = await artifacts.save(name, data, mime_type=_BYTES, metadata=metadata)
            return int(saved.version)

        return await self._check(app_name, save)

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        """Return an artifact, by default the newest version, or None if it does not exist. References to other artifacts are followed."""
        for _ in range(MAX_REFERENCES + 1):
            part = await self._load(app_name, user_id, filename, session_id, version)
            if part is None or not artifact_util.is_artifact_ref(part):
                return part
            target = _check_reference(part, app_name, user_id, session_id)
            assert target is not None, "it is a reference"
            filename, session_id, version = target.filename, target.session_id, target.version
        raise InputValidationError(f"{filename!r}: more than {MAX_REFERENCES} references to other artifacts")

    async def _load(
        self, app_name: str, user_id: str, filename: str, session_id: str | None, version: int | None
    ) -> types.Part | None:
        async def load(hf: holdfast.Holdfast) -> types.Part | None:
            try:
                artifacts = await _open(hf, user_id, filename, session_id)
                loaded = await artifacts.load(encode_name(filename), _check_version(filename, version))
            except (ArtifactNotFound, SessionNotFound):
                return None
            return _make_part(loaded.artifact, loaded.data)

        return await self._check(app_name, load)

    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        """Return the names of a session's artifacts and of the user's artifacts. Without a session id, return only the latter."""

        async def find(hf: holdfast.Holdfast) -> list[str]:
            try:
                found = await (await _open(hf, user_id, "" if session_id else USER, session_id)).list()
            except SessionNotFound:
                found = await hf.user_artifacts(user_id).list()
            return sorted(decode_name(one.name) for one in found)

        return await self._check(app_name, find)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete an artifact with all its versions, if there is one."""

        async def delete(hf: holdfast.Holdfast) -> None:
            try:
                await (await _open(hf, user_id, filename, session_id)).delete(encode_name(filename))
            except (ArtifactNotFound, SessionNotFound):
                pass

        await self._check(app_name, delete)

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """Return the numbers of an artifact's versions."""
        names = {"app_name": app_name, "user_id": user_id, "filename": filename, "session_id": session_id}
        return [one.version for one in await self.list_artifact_versions(**names)]  # type: ignore[arg-type]

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """Return descriptions of an artifact's versions, oldest first."""

        async def find(hf: holdfast.Holdfast) -> list[ArtifactVersion]:
            try:
                found = await (await _open(hf, user_id, filename, session_id)).versions(encode_name(filename))
            except (ArtifactNotFound, SessionNotFound):
                return []
            return [_describe_version(one, app_name, user_id, filename, session_id) for one in found]

        return await self._check(app_name, find)

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """Return the description of a version, by default the newest, or None if it does not exist."""

        async def get(hf: holdfast.Holdfast) -> ArtifactVersion | None:
            try:
                artifacts = await _open(hf, user_id, filename, session_id)
                found = await artifacts.get(encode_name(filename), _check_version(filename, version))
            except (ArtifactNotFound, SessionNotFound):
                return None
            return _describe_version(found, app_name, user_id, filename, session_id)

        return await self._check(app_name, get)

    async def _check(self, app_name: str, function: Callable[[holdfast.Holdfast], Awaitable[T]]) -> T:
        """Run a function like `_run`, and convert errors of the caller to ADK's `InputValidationError`."""
        try:
            return await self._run(app_name, function)
        except (InvalidRequest, TooLarge, Conflict, UnsupportedType) as exc:
            raise InputValidationError(str(exc)) from exc


async def _open(hf: holdfast.Holdfast, user_id: str, filename: str, session_id: str | None) -> Any:
    if filename.startswith(USER):
        return hf.user_artifacts(user_id)
    if session_id is None:
        raise InputValidationError("Session ID must be provided for session-scoped artifacts.")
    return (await hf.get(session_id.strip(), user_id=user_id)).artifacts


def _check_version(filename: str, version: int | None) -> int | None:
    """Return `version` unchanged, or raise `ArtifactNotFound` if it is negative."""
    if version is not None and version < 0:
        raise ArtifactNotFound(filename)
    return version


def _read_part(part: types.Part) -> tuple[bytes, str]:
    """Return the content of a part and its media type."""
    if part.inline_data is not None:
        return part.inline_data.data or b"", part.inline_data.mime_type or _BYTES
    if part.text is not None:
        return part.text.encode(), "text/plain"
    if part.file_data is not None:
        return (part.file_data.file_uri or "").encode(), "text/uri-list"
    raise InputValidationError("Not supported artifact type.")


def _describe(part: types.Part) -> Json:
    """Convert a part to JSON, without the content that `_read_part` returns."""
    described = part.model_dump(mode="json", exclude_none=True, exclude={"text": True, "inline_data": {"data"}})
    return described if part.text is None else {**described, "text": ""}


def _make_part(artifact: Any, data: bytes) -> types.Part | None:
    """Return the part that was saved, or None if the artifact is the empty mark that ADK saves to rewind an artifact."""
    described = artifact.metadata.get(PART)
    if described is None:  # saved by another program
        return types.Part.from_bytes(data=data, mime_type=artifact.mime_type)
    part = types.Part.model_validate(described)
    if part.inline_data is not None:
        part.inline_data.data = data
    elif part.text is not None:
        part.text = data.decode()
    is_rewound = part == types.Part(inline_data=types.Blob(mime_type=_BYTES, data=b""))
    return None if is_rewound else part


def _check_reference(
    part: types.Part, app_name: str, user_id: str, session_id: str | None
) -> artifact_util.ParsedArtifactUri | None:
    """Return the artifact to which a part refers, or None if the part is no reference.

    Raises:
        InputValidationError: the reference is invalid, or belongs to another application, user or session.
    """
    if not artifact_util.is_artifact_ref(part):
        return None
    uri = (part.file_data.file_uri if part.file_data else None) or ""
    parsed = artifact_util.parse_artifact_uri(uri)
    if parsed is None:
        raise InputValidationError(f"Invalid artifact reference URI: {uri}")
    artifact_util.validate_artifact_reference_scope(
        app_name=app_name, user_id=user_id, session_id=session_id, parsed_uri=parsed
    )
    return parsed


def _describe_version(
    artifact: Any, app_name: str, user_id: str, filename: str, session_id: str | None
) -> ArtifactVersion:
    owner = f"apps/{app_name}/users/{user_id}"
    if not filename.startswith(USER):
        owner += f"/sessions/{session_id}"
    return ArtifactVersion(
        version=artifact.version,
        canonical_uri=f"holdfast://{owner}/artifacts/{filename}/versions/{artifact.version}",
        custom_metadata=artifact.metadata.get(CUSTOM, {}),
        create_time=artifact.created_at / 1000,
        mime_type=_find_mime_type(artifact),
    )


def _find_mime_type(artifact: Any) -> str | None:
    """Return the media type as in ADK's own services: that of a referenced artifact is unknown."""
    described = artifact.metadata.get(PART)
    if described is None:  # saved by another program
        return str(artifact.mime_type)
    part = types.Part.model_validate(described)
    if part.text is not None and part.inline_data is None:
        return "text/plain"
    media = part.inline_data or part.file_data
    if media is None or artifact_util.is_artifact_ref(part):
        return None
    kind: str | None = media.mime_type
    return kind
