"""The steps that every write passes on its way to the database, as one ordered list.

Each step is a store that wraps another store. It overrides the methods that concern it and passes on all others, so the writes of
turns, the REST API, imports and summaries all pass through the same steps. A write passes through the list from the last step to
the first; the result returns in the opposite order. The outermost step, `ExpiringStore`, is not in the list: it differs for
each tenant, so `Engine` adds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from holdfast.engine.redacting_store import RedactingStore
from holdfast.hooks.transcripts import Transcripts
from holdfast.indexes.tenants import Indexes
from holdfast.media.store import MediaReferringStore
from holdfast.secrets.guard import Guard
from holdfast.stores.base import Store

WriteStep = Callable[[Store], Store]


def write_steps(
    *,
    guard: Guard | None,
    transcripts: Transcripts | None,
    indexes: Indexes | None,
) -> list[WriteStep]:
    """Return the steps that every write passes, in order. The first step is the one next to the database.

    Args:
        guard: masks or refuses secrets; None: secrets are stored unchanged.
        transcripts: writes the transcripts of sessions; None: there are none.
        indexes: the search index; None: this process has no index.
    """
    steps: list[WriteStep] = [
        # The data of images, audio and files is detached from messages, and stored once per session by its hash.
        MediaReferringStore,
    ]
    if guard is not None:
        # Secrets are refused or masked before anything else sees the text.
        steps.append(partial(RedactingStore, guard=guard))
    if transcripts is not None:
        # Transcripts are updated in the background. A file is deleted before content is erased.
        steps.append(transcripts.follow)
    if indexes is not None:
        # New messages are indexed in the background; erased ones are removed from the index before the write returns.
        steps.append(indexes.follow)
    return steps


def add_steps(store: Store, steps: Sequence[WriteStep]) -> Store:
    """Return a store whose writes pass through the given steps."""
    for step in steps:
        store = step(store)
    return store
