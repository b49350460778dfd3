"""The index: whether it opens, what it has, and how far it is behind the sessions. Looking makes none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.doctor.finding import Finding, fail, ok, warn
from holdfast.cli.terminal import counted, line
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.indexes.rebuild import IndexReport
    from holdfast.indexes.settings import IndexSettings

PATIENCE = 5.0
"""Seconds to wait for an answer."""
_REBUILD = "`holdfast index rebuild` makes it anew, and answers meanwhile"


def findings(config: Config, url: str) -> Iterator[Finding]:
    """One about the index of the store at `url`; none where the store is not there, or cannot be used."""
    import anyio

    from holdfast.config.build import build_index_settings
    from holdfast.indexes.settings import file_of, lasting, place_of

    if not lasting(url) or not ((file := file_of(url)) is None or file.exists()):
        return
    try:
        settings = build_index_settings(config)
        if settings is None:
            yield ok("index", "off: nothing can be searched (storage.index.enabled)")
            return
        place = file_of(place_of(settings, url))
        if place is not None and not place.exists():
            yield ok("index", f"{place}: not there yet, will be made by the first use")
            return
        report = anyio.run(_looked, settings, url)
    except TimeoutError:
        yield fail(
            "index",
            f"it did not answer within {PATIENCE:g} s",
            "stop the program that holds it; until then nothing is found",
        )
    except HoldfastError as error:
        yield fail("index", str(error), "make it reachable, or remove its file: it is made anew from the sessions")
    else:
        yield _told(report, place)


async def _looked(settings: IndexSettings, url: str) -> IndexReport:
    """How it is doing, without vectors being made meanwhile."""
    import anyio

    from holdfast.holdfast import Holdfast
    from holdfast.lifecycle.settings import LifeSettings

    plain = msgspec.structs.replace(settings, embedder=None, mode="keyword")
    with anyio.fail_after(PATIENCE):
        async with Holdfast(url, index=plain, life=LifeSettings(sweep=False)) as hf:
            assert hf.index is not None, "it is on"
            return await hf.index.status()


def _told(report: IndexReport, place: Path | None) -> Finding:
    where = "" if place is None else f"{place}: "
    held = f"{where}{counted(report.documents, 'text')} of {counted(report.sources, 'source')}"
    if report.rebuilding is not None:
        return warn(
            "index",
            f"{held}; a rebuild was begun and is not over",
            "a server, or `holdfast index rebuild`, goes on with it",
        )
    if report.behind:
        behind = f"{counted(report.behind, 'session')} behind, by {counted(report.entries_behind, 'message')}"
        return warn("index", f"{held}; {behind}", f"a server takes them in; {_REBUILD}")
    return ok("index", f"{held}; nothing is behind")


# -- the embedder ----------------------------------------------------------------

EMBEDDER = "embedder"
EMBEDDER_PATIENCE = 10.0
"""Seconds to wait for a vector: a local model is loaded first."""
_WORD = "holdfast"
"""What is embedded: nothing of anybody's."""
_REMEDY = "until then words alone are searched; `holdfast embeddings check` tries it by itself"


def embedder_findings(config: Config) -> Iterator[Finding]:
    """One about the embedder that the index has; none where it has none."""
    import anyio

    from holdfast.config.build import build_index_settings

    try:
        settings = build_index_settings(config)
        if settings is None or settings.embedder is None:
            return
        name, numbers = anyio.run(try_embedder, settings.embedder)
    except TimeoutError:
        yield warn(EMBEDDER, f"it made no vector within {EMBEDDER_PATIENCE:g} s", _REMEDY)
    except HoldfastError as error:
        yield warn(EMBEDDER, line(str(error)), _REMEDY)
    else:
        yield ok(EMBEDDER, f"{line(name)}: makes vectors of {numbers:,} numbers")


async def try_embedder(settings: Any) -> tuple[str, int]:
    """Its name, and how many numbers its vectors have."""
    import anyio

    from holdfast.embedders import embedder_of

    embedder = embedder_of(settings)
    try:
        with anyio.fail_after(EMBEDDER_PATIENCE):
            await embedder.embed([_WORD])
    finally:
        await embedder.close()
    return embedder.name, embedder.dimension or 0
