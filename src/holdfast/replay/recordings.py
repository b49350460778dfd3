"""Read recorded sessions from files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.wire.openai import split_system
from holdfast.wire.transcripts import BadLine, Recording, read_recordings


def read(paths: Iterable[Path], *, skip_bad: bool, on_bad: Callable[[BadLine], None]) -> list[Recording]:
    """Return the recorded sessions in JSONL files.

    Args:
        paths: The files, in order.
        skip_bad: True to skip invalid lines. False: the first invalid line raises an error.
        on_bad: Function that is called with each line that is skipped.

    Raises:
        InvalidMessage: A line is invalid. The error names file and line.
        InvalidRequest: A file cannot be read.
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
                        raise InvalidMessage(f"{item} (--skip-bad skips such lines)")
        except OSError as exc:
            raise InvalidRequest(f"{path}: {exc.strerror or exc}", param="FILE") from exc
    return found


def chain_sessions(sessions: Sequence[Recording]) -> list[Recording]:
    """Join all sessions into a single session with the system prompt of the first one."""
    if not sessions:
        return []
    messages = [*split_system(sessions[0].messages)[0]]
    for session in sessions:
        messages += split_system(session.messages)[1]
    return [Recording("chain", tuple(messages))]
