"""Artifacts of a session on a server."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from pathlib import Path
from typing import Any

import anyio

from holdfast.artifacts import LoadedArtifact
from holdfast.domain.artifact import NOTHING, Artifact, check_name
from holdfast.errors import ArtifactNotFound, InvalidRequest, TooLarge
from holdfast.limits import ARTIFACT_BYTES, CONNECT_PAGE
from holdfast.remote.objects import decode, parse_artifact, parse_artifacts
from holdfast.remote.transport import Request, Transport, encode_body

Data = bytes | bytearray | memoryview | str | Path | AsyncIterable[bytes]


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

    async def save(
        self,
        name: str,
        data: Data,
        *,
        mime_type: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        author: str | None = None,
        expect: int | None = None,
    ) -> Artifact:
        """Save a new version of an artifact, and return its description.

        The arguments and errors are those of `SessionArtifacts.save`. The whole content is in memory while it is sent.
        """
        content = await _read(data)
        query = {**self._query, "author": author}
        if metadata is not None:
            query["metadata"] = encode_body(dict(metadata)).decode()
        headers = {} if mime_type is None else {"content-type": mime_type}
        if expect == NOTHING:
            headers["if-none-match"] = "*"
        elif expect is not None:
            headers["if-match"] = f'"{expect}"'
        headers.setdefault(
            "content-type", "application/x-www-form-urlencoded"
        )  # the server derives the type from the name
        path = (*self._path, check_name(name))
        # With a condition, the server returns the result of the first attempt.
        request = Request("PUT", path, query, content, headers, repeatable=expect is not None)
        return parse_artifact((await self._transport.send(request)).data)

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
        return await self._read_pages()

    async def versions(self, name: str) -> tuple[Artifact, ...]:
        """Return all versions of an artifact, oldest first. Raises `ArtifactNotFound` if there is no such artifact or version."""
        return await self._read_pages(name=check_name(name))

    async def delete(self, name: str, version: int | None = None) -> int:
        """Delete an artifact, or one version of it, and return the number of deleted versions.

        Raises:
            ArtifactNotFound: there is no such artifact or version.
        """
        query = {**self._query, "version": version}
        deleted = await self._transport.call("DELETE", *self._path, check_name(name), query=query, parse=decode)
        return int(deleted["versions"])

    async def _read_pages(self, **chosen: str) -> tuple[Artifact, ...]:
        found: list[Artifact] = []
        after, more = None, True
        while more:
            query = {**self._query, **chosen, "limit": CONNECT_PAGE, "after": after}
            page, more, after = await self._transport.call("GET", *self._path, query=query, parse=parse_artifacts)
            found += page
        return tuple(found)


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
