"""The embedder of the index: whether it makes vectors. Without them words alone are searched, and nothing else tells of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.cli.checkup.finding import Finding, ok, warn
from holdfast.cli.terminal import line
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.config import Config

CHECK = "embedder"
PATIENCE = 10.0
"""Seconds to wait for a vector: a local model is loaded first."""
_WORD = "holdfast"
"""What is embedded: nothing of anybody's."""
_REMEDY = "until then words alone are searched; `holdfast embeddings check` tries it by itself"


def findings(config: Config) -> Iterator[Finding]:
    """One about the embedder that the index has; none where it has none."""
    import anyio

    from holdfast.config.build import build_index_settings

    try:
        settings = build_index_settings(config)
        if settings is None or settings.embedder is None:
            return
        name, numbers = anyio.run(_tried, settings.embedder)
    except TimeoutError:
        yield warn(CHECK, f"it made no vector within {PATIENCE:g} s", _REMEDY)
    except HoldfastError as error:
        yield warn(CHECK, line(str(error)), _REMEDY)
    else:
        yield ok(CHECK, f"{line(name)}: makes vectors of {numbers:,} numbers")


async def _tried(settings: Any) -> tuple[str, int]:
    """Its name, and how many numbers its vectors have."""
    import anyio

    from holdfast.embedders import embedder_of

    embedder = embedder_of(settings)
    try:
        with anyio.fail_after(PATIENCE):
            await embedder.embed([_WORD])
    finally:
        await embedder.close()
    return embedder.name, embedder.dimension or 0
