"""Check the search index and its embedder. No check creates an index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.doctor.finding import Finding, fail, ok, warn
from holdfast.cli.doctor.store import check_schema
from holdfast.cli.terminal import format_line
from holdfast.errors import HoldfastError
from holdfast.numbers import format_count

if TYPE_CHECKING:
    from holdfast.config.model import Config
    from holdfast.indexes.report import IndexReport
    from holdfast.indexes.settings import IndexSettings

TIMEOUT_SECONDS = 5.0
"""Maximum seconds to wait for the index."""
_REBUILD = "`holdfast index rebuild` indexes them now, while searches keep working"


def check_index(config: Config, url: str) -> Iterator[Finding]:
    """Check the search index of the store at `url`. Yield nothing if the store does not exist or is only in memory."""
    import anyio

    from holdfast.config.build import build_index_settings
    from holdfast.indexes.settings import get_index_file, is_lasting, resolve_index_url

    if not is_lasting(url) or not ((file := get_index_file(url)) is None or file.exists()):
        return
    try:
        settings = build_index_settings(config)
        if settings is None:
            yield ok("index", "disabled: search is not available (storage.index.enabled)")
            return
        place = get_index_file(resolve_index_url(settings, url))
        if place is not None and not place.exists():
            yield ok("index", f"{place}: does not exist yet, created on first use")
            return
        if anyio.run(check_schema, url, ""):
            return  # which is reported as a finding about the store
        if pending := anyio.run(check_schema, resolve_index_url(settings, url), f"{place or 'the index'}", "index"):
            yield pending
            return
        report = anyio.run(_inspect, settings, url)
    except TimeoutError:
        remedy = "stop the program that locks it; until then search finds nothing"
        yield fail("index", f"no answer within {TIMEOUT_SECONDS:g} s", remedy)
    except HoldfastError as error:
        yield fail("index", str(error), "make it reachable, or delete its file: it is rebuilt from the sessions")
    else:
        yield _report(report, place)


async def _inspect(settings: IndexSettings, url: str) -> IndexReport:
    """Open the index with its embedder disabled, so that no vectors are created, and return the status of the index."""
    import anyio

    from holdfast.holdfast import Holdfast
    from holdfast.lifecycle.settings import LifeSettings

    plain = msgspec.structs.replace(settings, embedder=None, mode="keyword")
    with anyio.fail_after(TIMEOUT_SECONDS):
        async with Holdfast(url, index=plain, life=LifeSettings(sweep=False)) as hf:
            assert hf.index is not None, "the index is enabled"
            return await hf.index.status()


def _report(report: IndexReport, place: Path | None) -> Finding:
    where = "" if place is None else f"{place}: "
    size = f"{where}{format_count(report.documents, 'text')} of {format_count(report.sources, 'source')}"
    for model, number in report.vectors.items():
        size += f"; {format_count(number, 'vector')} of {model}, searched by {report.vector_engine}"
    if report.rebuilding is not None:
        remedy = "a running server or `holdfast index rebuild` continues it"
        return warn("index", f"{size}; a rebuild is incomplete", remedy)
    if report.behind:
        behind = f"{format_count(report.behind, 'session')} not indexed yet, {format_count(report.entries_behind, 'message')}"
        return warn("index", f"{size}; {behind}", f"a running server indexes them; {_REBUILD}")
    return ok("index", f"{size}; all sessions are indexed")


# -- the embedder ----------------------------------------------------------------

EMBEDDER = "embedder"
EMBEDDER_TIMEOUT_SECONDS = 10.0
"""Maximum seconds to wait for a vector, including the time to load a local model."""
_ALIKE = ("Where is my parcel?", "When will my package arrive?")
_OTHER = "The cat is asleep on the sofa."
"""Texts to embed. They contain no user data."""
_REMEDY = "until it works, only keyword search finds something"


def check_embedder(config: Config) -> Iterator[Finding]:
    """Check the embedder of the index, if it has one: the files of a local model, and vectors of three sentences."""
    import anyio

    from holdfast.config.build import build_index_settings
    from holdfast.embedders import weights
    from holdfast.embedders.settings import LOCAL

    try:
        settings = build_index_settings(config)
        if settings is None or settings.embedder is None:
            return
        if settings.embedder.provider == LOCAL:
            weights.verify(weights.find(settings.embedder.path))
        name, numbers, is_closer = anyio.run(_try_embedder, settings.embedder)
    except TimeoutError:
        yield warn(EMBEDDER, f"no vector within {EMBEDDER_TIMEOUT_SECONDS:g} s", _REMEDY)
    except HoldfastError as error:
        yield warn(EMBEDDER, format_line(str(error)), _REMEDY)
    else:
        made = f"{format_line(name)}: vectors of {numbers:,} dimensions"
        if is_closer:
            yield ok(EMBEDDER, made)
        else:
            problem = f"{made}; related sentences are not more similar than unrelated ones"
            yield warn(EMBEDDER, problem, "configure a model for sentence embeddings")


async def _try_embedder(settings: Any) -> tuple[str, int, bool]:
    """Embed three sentences. Return the name of the embedder, the dimension, and True if related sentences are more similar."""
    import anyio

    from holdfast.embedders import embedder_of
    from holdfast.recall.vectors import compute_similarities

    embedder = embedder_of(settings)
    try:
        with anyio.fail_after(EMBEDDER_TIMEOUT_SECONDS):
            first, *others = await embedder.embed([*_ALIKE, _OTHER])
    finally:
        await embedder.close()
    dimension = len(first) // 4
    alike, other = compute_similarities(first, others, dimension)
    return embedder.name, dimension, alike > other
