"""Render MEMORY.md, which lists promoted memories, and DREAMS.md, the diary of sweeps. Pure functions.

The files are rendered from what is stored, so that they never contain forgotten memories. Each memory is one list item. Neither a Markdown
program nor a model that reads the file can mistake a part of it for markup or for another item. For this purpose, line breaks become
blanks, control and invisible characters are removed, and characters with a meaning in Markdown or HTML are escaped. `parse_items` reads
the items of a file.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from holdfast.context.recalled import format_time
from holdfast.domain.memory import DiaryEntry, Memory
from holdfast.durations import to_utc

MEMORY_FILE: Final = "MEMORY.md"
DIARY_FILE: Final = "DREAMS.md"
MOST_ITEMS: Final = 200
"""Maximum number of memories in MEMORY.md, where the best are listed, and of sweeps in DREAMS.md, where the newest are listed."""
ITEM_CHARS: Final = 500
"""Maximum number of characters of a memory in a file, not counting escapes. A longer memory is cut, and marked as cut."""
DIARY_BYTES: Final = 512 * 1024
"""Maximum size of a diary in bytes. Only a diary of one sweep may be larger."""
FORGOTTEN: Final = "(forgotten)"
_CUT: Final = " … (cut)"
_UNSEEN: Final = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~&=:@^$\"'])")
_ESCAPED: Final = re.compile(r"\\(.)")
_ITEM: Final = re.compile(r"^- \*\*(mem_[0-9a-f]{32})\*\* (.*?)(?: _\((.*)\)_)?$", re.MULTILINE)


def to_one_line(text: str, limit: int = ITEM_CHARS) -> str:
    """Return a text as one line without invisible characters. If it is longer than `limit` characters, it is cut, and marked as cut."""
    seen = "".join(" " if char in "\t\n\r\v\f\x85\u2028\u2029" else char for char in unicodedata.normalize("NFC", text))
    plain = " ".join("".join(char for char in seen if unicodedata.category(char) not in _UNSEEN).split())
    return plain if len(plain) <= limit else plain[:limit].rstrip() + _CUT


def escape_line(text: str, limit: int = ITEM_CHARS) -> str:
    """Return a text as one line, as `to_one_line` does, with escapes so that it contains no markup of Markdown or HTML."""
    return _SPECIAL.sub(r"\\\1", to_one_line(text, limit))


def parse_items(file: str) -> list[tuple[str, str]]:
    """Return the id and the text of each memory in a rendered file."""
    return [(found[1], _ESCAPED.sub(r"\1", found[2])) for found in _ITEM.finditer(file)]


def render_memory_file(memories: Iterable[Memory], title: str = "Memories") -> str:
    """Render MEMORY.md: the promoted memories, highest score first.

    Args:
        memories: promoted memories that are valid now. At most `MOST_ITEMS` of them are listed.
        title: title of the file.
    """
    ranked = sorted(memories, key=lambda one: (-(one.score or 0.0), one.owner, one.number))
    lines = [f"# {escape_line(title)}", "", *map(_format_memory, ranked[:MOST_ITEMS])]
    if len(ranked) > MOST_ITEMS:
        lines += ["", f"{len(ranked) - MOST_ITEMS} more are not listed here."]
    return "\n".join(lines) + "\n"


def render_diary(entries: Sequence[DiaryEntry], memories: Mapping[str, Memory], title: str = "Dream Diary") -> str:
    """Render DREAMS.md: for each sweep, the memories that were promoted, held for review or not promoted, and the reasons.

    Args:
        entries: the sweeps, newest first. At most `MOST_ITEMS` of them are rendered, up to a total size of `DIARY_BYTES`. The newest one
            is always rendered.
        memories: existing memories, by id. Other memories are shown as forgotten.
        title: title of the file.
    """
    lines, size = [f"# {escape_line(title)}"], 0
    for entry in entries[:MOST_ITEMS]:
        sweep_lines = ["", f"## {format_time(entry.at)}", "", *_iter_sweep_lines(entry.report, memories)]
        size += sum(len(line.encode()) + 1 for line in sweep_lines)
        if size > DIARY_BYTES and len(lines) > 1:
            break
        lines += sweep_lines
    return "\n".join(lines) + "\n"


def make_commit_lines(report: Mapping[str, Any], memories: Mapping[str, Memory]) -> list[str]:
    """Return the lines for the commit message of a sweep: for each promoted memory its id, its score, and the beginning of its text."""
    return [
        f"- {one['memory_id']} (score {one['score']:.2f}): {_format_content(one['memory_id'], memories, 80)}"
        for one in report.get("candidates", ())
        if one["verdict"] == "promoted"
    ]


def format_figures(candidate: Mapping[str, Any]) -> str:
    """Return a memory's numbers of recalls, questions and days as text, for example `3 recalls, 2 questions, 1 day`."""
    counts = ((candidate["recalls"], "recall"), (candidate["queries"], "question"), (candidate["days"], "day"))
    return ", ".join(f"{number} {name}{'s' * (number != 1)}" for number, name in counts)


def _format_memory(memory: Memory) -> str:
    notes = [f"score {memory.score or 0.0:.2f}", memory.type, f"promoted {_format_day(memory.promoted_at or 0)}"]
    return f"- **{memory.id}** {escape_line(memory.content)} _({', '.join(notes)})_"


def _iter_sweep_lines(report: Mapping[str, Any], memories: Mapping[str, Memory]) -> Iterable[str]:
    candidates = report.get("candidates", ())
    of = {verdict: [one for one in candidates if one["verdict"] == verdict] for verdict in _HEADINGS}
    counts = {verdict: len(ones) for verdict, ones in of.items()} | dict(report.get("verdicts", {}))
    yield ", ".join(f"{counts[verdict]} {verdict}" for verdict in _HEADINGS) + "."
    for verdict, heading in _HEADINGS.items():
        if of[verdict] and heading:
            yield from ("", f"### {heading}", "")
            yield from (_format_candidate(one, memories) for one in of[verdict])
    if report.get("themes"):
        yield from ("", "### Themes", "")
        yield from (
            f"- {', '.join(escape_line(word, 64) for word in theme['terms'])} ({theme['size']})"
            for theme in report["themes"]
        )


_HEADINGS: Final = {
    "promoted": "Promoted",
    "held": "Held for review",
    "over": "Good enough, for the next time",
    "gated": "Not promoted",
    "already": "",
}


def _format_candidate(one: Mapping[str, Any], memories: Mapping[str, Memory]) -> str:
    why = "; ".join([f"score {one['score']:.2f}, {format_figures(one)}", *one["gates"]])
    return f"- **{one['memory_id']}** {_format_content(one['memory_id'], memories, 120)} _({escape_line(why)})_"


def _format_content(memory_id: str, memories: Mapping[str, Memory], limit: int) -> str:
    memory = memories.get(memory_id)
    return escape_line(FORGOTTEN if memory is None else memory.content, limit)


def _format_day(at: int) -> str:
    return f"{to_utc(at):%Y-%m-%d}"
