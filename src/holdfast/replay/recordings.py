"""Recorded sessions out of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.wire.openai import split_system
from holdfast.wire.transcripts import BadLine, Recording, read_recordings


def read(paths: Iterable[Path], *, skip_bad: bool, on_bad: Callable[[BadLine], None]) -> list[Recording]:
    """The recordings in some JSONL files.

    Args:
        paths: the files, in order.
        skip_bad: go on behind a bad line; otherwise the first one raises.
        on_bad: told of each bad line that is skipped.

    Raises:
        InvalidMessage: a bad line, named by file and number.
        InvalidRequest: a file that cannot be read.
    """
    found = []
    for path in paths:
        try:
            with path.open("rb") as file:
                for item in read_recordings(file, str(path)):
                    if isinstance(item, Recording):
                        found.append(item)
                    elif skip_bad:
                        on_bad(item)
                    else:
                        raise InvalidMessage(f"{item} (--skip-bad goes on behind it)")
        except OSError as exc:
            raise InvalidRequest(f"{path}: {exc.strerror or exc}", param="FILE") from exc
    return found


def chained(sessions: Sequence[Recording]) -> list[Recording]:
    """All sessions as one long one, under the first one's system prompt."""
    if not sessions:
        return []
    messages = [*split_system(sessions[0].messages)[0]]
    for session in sessions:
        messages += split_system(session.messages)[1]
    return [Recording("chain", tuple(messages))]
