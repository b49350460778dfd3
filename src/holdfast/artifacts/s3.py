"""Store the contents of artifacts in a bucket of S3 or a compatible service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.artifacts.blobs import CHUNK, TenantFolder, make_missing_error
from holdfast.background import wait_until_done
from holdfast.errors import MissingExtra, StoreUnavailable
from holdfast.stores.base import Store

try:
    import obstore
    from obstore.exceptions import BaseError, NotFoundError
    from obstore.store import S3Store
except ImportError as exc:  # pragma: no cover  # installed in the tests' environment
    raise MissingExtra("storing artifacts in S3", "s3") from exc

if TYPE_CHECKING:
    from obstore.store import S3Config

PART_BYTES: Final = 5 << 20
"""Bytes of each part of an upload, which is the smallest size that S3 allows. A smaller content is sent in one request."""
CONCURRENT_PARTS: Final = 2
"""Number of parts that are sent at the same time. An upload needs memory for these parts and for the part that is being collected."""
REQUEST_TIMEOUT: Final = timedelta(seconds=60)
"""Time limit of one request, which sends a part or receives a chunk."""


class S3Blobs:
    """Stores contents in a bucket of S3. Implements `Blobs`.

    Args:
        folder: name of the tenant's folder, with which each key begins.
        bucket: name of an existing bucket, and optionally `/` and a prefix of all keys in it.
        endpoint: URL of an S3-compatible service; None: AWS.
        region: region of the bucket; None: from the environment, or us-east-1.
        access_key: id of the access key; None: from the environment, as AWS's own tools do.
        secret_key: secret of the access key, required if `access_key` is given.
    """

    def __init__(
        self,
        folder: TenantFolder,
        bucket: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        self._folder = folder
        name, _, prefix = bucket.partition("/")
        given = {
            "endpoint": endpoint,
            "region": region,
            "access_key_id": access_key,
            "secret_access_key": secret_key,
        }
        with _translate_errors(None):
            self._store = S3Store(
                name,
                prefix=prefix.strip("/") or None,
                config=cast("S3Config", {name: value for name, value in given.items() if value is not None}),
                client_options={"allow_http": True, "timeout": REQUEST_TIMEOUT},
                retry_config={"max_retries": 3, "retry_timeout": REQUEST_TIMEOUT},
            )

    async def put(self, key: str, chunks: AsyncIterable[bytes]) -> None:
        path = f"{await self._folder.ensure_name()}/{key}"
        source = _ChunkSource(chunks)
        sending = asyncio.ensure_future(self._send(path, source))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            # The library stops only if its source fails; then it also removes the parts that it sent.
            source.stop()
            await wait_until_done(sending)
            raise
        except BaseException:
            if source.error is not None:
                raise source.error from None
            raise

    async def _send(self, path: str, source: _ChunkSource) -> None:
        with _translate_errors(None):
            await obstore.put_async(self._store, path, source, chunk_size=PART_BYTES, max_concurrency=CONCURRENT_PARTS)

    async def get(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        folder = await self._folder.get_name()
        if folder is None:
            raise make_missing_error(key)
        with _translate_errors(key):
            found = await obstore.get_async(self._store, f"{folder}/{key}", options={"range": (start, stop)})
            async for chunk in found.stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    async def delete(self, keys: Sequence[str]) -> None:
        folder = await self._folder.get_name()
        if folder is not None and keys:
            with _translate_errors(None):
                await obstore.delete_async(self._store, [f"{folder}/{key}" for key in keys])

    async def list_old(self, before: int) -> AsyncGenerator[str, None]:
        folder = await self._folder.get_name()
        if folder is None:
            return
        with _translate_errors(None):
            async for some in obstore.list(self._store, prefix=folder, chunk_size=1000):
                for found in some:
                    if found["last_modified"].timestamp() * 1000 < before:
                        yield found["path"].rpartition("/")[2]

    def for_store(self, store: Store) -> S3Blobs:
        other = copy(self)
        other._folder = TenantFolder(store)  # noqa: SLF001  # the same class; the connections are shared
        return other


class _UploadStopped(Exception):  # a result, not an error
    """Raised in a `_ChunkSource` if the upload was cancelled."""


class _ChunkSource:
    """Provides the chunks of a content to the library.

    An exception that the chunks raise is kept, because the library passes on only its message.
    """

    def __init__(self, chunks: AsyncIterable[bytes]) -> None:
        self._chunks = aiter(chunks)
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: BaseException | None = None

    def stop(self) -> None:
        """Make the next chunk raise `_UploadStopped`, even if the library is already waiting for the chunk."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        step = asyncio.ensure_future(_get_next(self._chunks))
        either: list[asyncio.Future[Any]] = [step, self._stopped]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._stopped.done():
            step.cancel()
            await wait_until_done(step)
            raise _UploadStopped
        try:
            chunk = step.result()
        except BaseException as exc:
            self.error = exc
            raise
        if chunk is None:
            raise StopAsyncIteration
        return chunk


async def _get_next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


@contextmanager
def _translate_errors(key: str | None) -> Iterator[None]:
    """Translate errors of the library, which contain addresses but never access keys.

    Args:
        key: key of the content that is read. If S3 does not find it, `StoreCorrupt` is raised. None: no content is read, so if the bucket
            is missing, `StoreUnavailable` is raised.
    """
    try:
        yield
    except (NotFoundError, FileNotFoundError) as exc:
        raise (
            StoreUnavailable(f"S3: the bucket does not exist ({_describe(exc)})")
            if key is None
            else make_missing_error(key)
        ) from exc
    except (BaseError, OSError, ValueError) as exc:
        raise StoreUnavailable(f"the artifacts' bucket cannot be used: {_describe(exc)}") from exc


def _describe(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {str(exc).splitlines()[0][:300] if str(exc) else 'no message'}"
