"""Contents in a bucket of S3, or of anything that speaks as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.artifacts.blobs import CHUNK, Home, missing
from holdfast.background import wait_until_done
from holdfast.errors import MissingExtra, StoreUnavailable
from holdfast.stores.base import Store

try:
    import obstore
    from obstore.exceptions import BaseError, NotFoundError
    from obstore.store import S3Store
except ImportError as exc:  # pragma: no cover  # the tests' environment has it
    raise MissingExtra("keeping artifacts in S3", "s3") from exc

if TYPE_CHECKING:
    from obstore.store import S3Config

PART_BYTES: Final = 5 << 20
"""Smallest part that S3 takes of an upload; a content up to this is sent in one."""
PARTS: Final = 2
"""Parts under way at once: with the one that is being gathered, what an upload holds in memory."""
PATIENCE: Final = timedelta(seconds=60)
"""For one request: a part up, or a chunk down."""


class S3Blobs:
    """See `holdfast.artifacts.blobs.Blobs`.

    Args:
        home: whose contents: what they lie under, behind the prefix.
        bucket: made already.
        prefix: what all keys begin with.
        endpoint: of what speaks like S3; None: AWS.
        region: None: as the environment says, else us-east-1.
        access_key: with `secret_key`; None: as AWS's own tools find them in the environment.
        secret_key: see above.
    """

    def __init__(
        self,
        home: Home,
        bucket: str,
        *,
        prefix: str = "",
        endpoint: str | None = None,
        region: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        self._home = home
        self._prefix = prefix.strip("/")
        given = {
            "endpoint": endpoint,
            "region": region,
            "access_key_id": access_key,
            "secret_access_key": secret_key,
        }
        with _translated(None):
            self._store = S3Store(
                bucket,
                config=cast("S3Config", {name: value for name, value in given.items() if value is not None}),
                client_options={"allow_http": True, "timeout": PATIENCE},
                retry_config={"max_retries": 3, "retry_timeout": PATIENCE},
            )

    async def put(self, key: str, chunks: AsyncIterable[bytes]) -> None:
        """See `Blobs.put`."""
        path = _under(self._prefix, await self._home.made(), key)
        source = _Source(chunks)
        sending = asyncio.ensure_future(self._send(path, source))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            # The library goes on by itself, unless its source fails: then it takes back what it sent, too.
            source.stop()
            await wait_until_done(sending)
            raise
        except BaseException:
            if source.error is not None:
                raise source.error from None
            raise

    async def _send(self, path: str, source: _Source) -> None:
        with _translated(None):
            await obstore.put_async(self._store, path, source, chunk_size=PART_BYTES, max_concurrency=PARTS)

    async def get(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """See `Blobs.get`."""
        home = await self._home.found()
        if home is None:
            raise missing(key)
        with _translated(key):
            found = await obstore.get_async(
                self._store, _under(self._prefix, home, key), options={"range": (start, stop)}
            )
            async for chunk in found.stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    async def delete(self, keys: Sequence[str]) -> None:
        """See `Blobs.delete`."""
        home = await self._home.found()
        if home is not None and keys:
            with _translated(None):
                await obstore.delete_async(self._store, [_under(self._prefix, home, key) for key in keys])

    async def old(self, before: int) -> AsyncGenerator[str, None]:
        """See `Blobs.old`."""
        home = await self._home.found()
        if home is None:
            return
        with _translated(None):
            async for some in obstore.list(self._store, prefix=_under(self._prefix, home), chunk_size=1000):
                for found in some:
                    if found["last_modified"].timestamp() * 1000 < before:
                        yield found["path"].rpartition("/")[2]

    def of(self, store: Store) -> S3Blobs:
        """See `Blobs.of`."""
        other = copy(self)
        other._home = Home(store)  # noqa: SLF001  # it is one of these; the connections are shared
        return other


def _under(*parts: str) -> str:
    return "/".join(part for part in parts if part)


class _Stopped(Exception):  # not an error: an outcome
    """Nobody wants the upload any more."""


class _Source:
    """Chunks for the library to take, and what making them raised: it hands on the words of an error alone."""

    def __init__(self, chunks: AsyncIterable[bytes]) -> None:
        self._chunks = aiter(chunks)
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: BaseException | None = None

    def stop(self) -> None:
        """Fail, also while a chunk is waited for."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        step = asyncio.ensure_future(_next(self._chunks))
        either: list[asyncio.Future[Any]] = [step, self._stopped]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._stopped.done():
            step.cancel()
            await wait_until_done(step)
            raise _Stopped
        try:
            chunk = step.result()
        except BaseException as exc:
            self.error = exc
            raise
        if chunk is None:
            raise StopAsyncIteration
        return chunk


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


@contextmanager
def _translated(key: str | None) -> Iterator[None]:
    """The one place where errors of the library become ours. They quote addresses, never keys of access."""
    try:
        yield
    except (NotFoundError, FileNotFoundError) as exc:
        raise (
            StoreUnavailable(f"S3: there is no such bucket ({_words(exc)})") if key is None else missing(key)
        ) from exc
    except (BaseError, OSError, ValueError) as exc:
        raise StoreUnavailable(f"the artifacts' bucket cannot be used: {_words(exc)}") from exc


def _words(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {str(exc).splitlines()[0][:300] if str(exc) else 'no words'}"
