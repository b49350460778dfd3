"""Artifacts of a session on a server."""

from __future__ import annotations

from collections.abc import AsyncIterable
from pathlib import Path
from typing import Any, Final

import anyio

from holdfast.artifacts.service import LoadedArtifact, SessionArtifacts
from holdfast.domain.artifact import NOTHING, Artifact, check_name
from holdfast.errors import ArtifactNotFound, InvalidRequest, TooLarge
from holdfast.limits import ARTIFACT_BYTES
from holdfast.remote.objects import decode, parse_page, to_artifact
from holdfast.remote.transport import Request, Transport, encode_body, match
from holdfast.signatures import Arguments, like

_parse_artifacts: Final = parse_page(to_artifact)


class RemoteArtifacts:
    """The artifacts of one session, and those that the user's sessions share, available as `session.artifacts`.

    Args:
        transport: the connections.
        path: segments of the path of the session.
        user_id: user of the session.
    """

    def __init__(self, transport: Transport, path: tuple[str, ...], user_id: str) -> None:
        self._transport, self._path = transport, (*path, "artifacts")
        self._query = {"user_id": user_id}

    @like(SessionArtifacts.save)
    async def save(self, given: Arguments) -> Artifact:
        """Save a new version of an artifact, and return its description.

        The arguments and errors are those of `SessionArtifacts.save`. The whole content is in memory while it is sent.
        """
        content = await _read(given["data"])
        query = {**self._query, "author": given["author"]}
        if given["metadata"] is not None:
            query["metadata"] = encode_body(dict(given["metadata"])).decode()
        # With this type, which says nothing, the server derives the type from the name.
        headers = {"content-type": given["mime_type"] or "application/x-www-form-urlencoded"}
        expect = given["expect"]
        headers |= {"if-none-match": "*"} if expect == NOTHING else match(expect)
        # With a condition, the server returns the result of the first attempt.
        path = (*self._path, check_name(given["name"]))
        request = Request("PUT", path, query, content, headers, repeatable=expect is not None)
        return to_artifact(decode((await self._transport.send(request)).data))

    async def get(self, name: str, version: int | None = None) -> Artifact:
        """Return an artifact without its content. Raises `ArtifactNotFound` if there is no such artifact or version."""
        found = await self.versions(name)
        for one in reversed(found):
            if version in (None, one.version):
                return one
        raise ArtifactNotFound(name, version)

    async def load(self, name: str, version: int | None = None) -> LoadedArtifact:
        """Return an artifact with its content. Raises `ArtifactNotFound` if there is no such artifact or version."""
        artifact = await self.get(name, version)
        query = {**self._query, "version": artifact.version}
        answer = await self._transport.send(
            Request("GET", (*self._path, check_name(name)), query, headers={"accept": "*/*"}, repeatable=True)
        )
        return LoadedArtifact(artifact, answer.data)

    async def list(self) -> tuple[Artifact, ...]:
        """Return the newest version of each artifact: first the session's own, then those that the user's sessions share."""
        return await self._read_all()

    async def versions(self, name: str) -> tuple[Artifact, ...]:
        """Return all versions of an artifact, oldest first. Raises `ArtifactNotFound` if there is no such artifact or version."""
        return await self._read_all(name=check_name(name))

    async def delete(self, name: str, version: int | None = None) -> int:
        """Delete an artifact, or one version of it, and return the number of deleted versions.

        Raises:
            ArtifactNotFound: there is no such artifact or version.
        """
        query = {**self._query, "version": version}
        deleted = await self._transport.call("DELETE", *self._path, check_name(name), query=query, parse=decode)
        return int(deleted["versions"])

    async def _read_all(self, **chosen: str) -> tuple[Artifact, ...]:
        query = {**self._query, **chosen}
        return await self._transport.read_all(*self._path, query=query, parse=_parse_artifacts)


async def _read(data: Any) -> bytes:
    """Return the content to save. Raises `TooLarge` before more than `ARTIFACT_BYTES` are in memory."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if isinstance(data, Path):
        try:
            return await anyio.Path(data).read_bytes()
        except OSError as exc:
            raise InvalidRequest(
                f"the file of an artifact cannot be read: {exc.strerror or exc}", param="data"
            ) from exc
    if not isinstance(data, AsyncIterable):
        kinds = "bytes, a str, a pathlib.Path or an async iterable of bytes"
        raise InvalidRequest(f"data must be {kinds}, not {type(data).__name__}", param="data")
    whole = bytearray()
    async for piece in data:
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise InvalidRequest(f"a content consists of bytes, not {type(piece).__name__}", param="data")
        whole += piece
        if len(whole) > ARTIFACT_BYTES:
            raise TooLarge(f"the content has more than {ARTIFACT_BYTES:,} bytes", param="data")
    return bytes(whole)
