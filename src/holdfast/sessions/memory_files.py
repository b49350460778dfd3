"""Files that an agent keeps as its memory, with the commands of Anthropic's memory tool (`memory_20250818`).

The answers have the same words as in the SDK's own implementation, because models are trained on these answers. Files are stored as records
with versions. If another writer changes a file at the same time, the command is tried again with the new content, so no change is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.errors import Conflict, InvalidRequest, StaleRecord, TooLarge
from holdfast.limits import MEMORY_FILE_BYTES, MEMORY_FILES_LISTED, RECORD_CHANGES
from holdfast.sessions.records import Records

ROOT: Final = "/memories"
_LINES: Final = 999_999
"""Maximum number of lines of a file that can be shown."""
_WIDTH: Final = 6
"""Width of line numbers."""
_FOLDER_SIZE: Final = 4096
"""Size in bytes that is reported for a folder, as on most disks."""
_AROUND: Final = 2
"""Number of lines that are shown before and after a change."""
_SHOWN_MATCHES: Final = 1_000
"""Maximum number of occurrences of a text whose lines an error names, so that a long file cannot make the error long."""
_TRIES: Final = 16
"""Maximum number of attempts at a change while other writers change the same file."""


class MemoryFiles:
    """Reads and changes the memory files of one owner. Every error is an `InvalidRequest` with a message for the model.

    Args:
        records: where the files are stored: `hf.records("memory_files", user_id=…)`.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    async def view(self, path: str, view_range: Sequence[int] | None = None) -> str:
        """Return a file with line numbers, or the list of a folder, up to two levels deep.

        Args:
            path: the file or folder, beginning with `/memories`.
            view_range: first and last line of a file, from 1; -1 as the last line means the end.
        """
        key = _parse_path(path)
        content = await self._read(key) if key else None
        if content is None:
            return await self._view_folder(path, key)
        lines = content.split("\n")
        if len(lines) > _LINES:
            raise InvalidRequest(f"File {path} exceeds maximum line limit of {_LINES:,} lines.")
        first = 1
        if view_range is not None and len(view_range) == 2:
            first = max(1, view_range[0])
            lines = lines[first - 1 : len(lines) if view_range[1] == -1 else view_range[1]]
        return f"Here's the content of {path} with line numbers:\n" + _number(lines, first)

    async def create(self, path: str, file_text: str) -> str:
        """Create a file. An existing file or folder is not replaced."""
        key = _parse_path(path)
        if not key or await self._has_files_below(key) or await self._find_file_above(key):
            raise InvalidRequest(f"File {path} already exists")
        try:
            await self._write(key, file_text, 0)
        except StaleRecord as exc:
            raise InvalidRequest(f"File {path} already exists") from exc
        return f"File created successfully at: {path}"

    async def str_replace(self, path: str, old_str: str, new_str: str) -> str:
        """Replace a text that occurs once in a file."""
        shown = ""

        def edit(content: str) -> str:
            nonlocal shown
            number = content.count(old_str) if old_str else 0
            if number == 0:
                raise InvalidRequest(
                    f"No replacement was performed, old_str `{old_str}` did not appear verbatim in {path}."
                )
            if number > 1:
                raise InvalidRequest(
                    f"No replacement was performed. Multiple occurrences of old_str `{old_str}` in lines:"
                    f" {', '.join(map(str, _find_lines(content, old_str)))}. Please ensure it is unique"
                )
            changed = content.replace(old_str, new_str)
            at = content[: content.find(old_str)].count("\n")
            lines, first = changed.split("\n"), max(0, at - _AROUND)
            shown = _number(lines[first : at + _AROUND + 1], first + 1)
            return changed

        await self._edit(path, edit)
        return f"The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{shown}"

    async def insert(self, path: str, insert_line: int, insert_text: str) -> str:
        """Insert a text after a line of a file; 0 inserts it at the beginning."""

        def edit(content: str) -> str:
            lines = content.split("\n")
            lines = lines[:-1] if lines[-1] == "" else lines
            if not 0 <= insert_line <= len(lines):
                raise InvalidRequest(
                    f"Invalid `insert_line` parameter: {insert_line}. It should be within the range [0, {len(lines)}]."
                )
            changed = "\n".join([*lines[:insert_line], insert_text.rstrip("\n"), *lines[insert_line:]])
            return changed if changed.endswith("\n") else f"{changed}\n"

        await self._edit(path, edit)
        return f"The file {path} has been edited."

    async def delete(self, path: str) -> str:
        """Delete a file, or a folder with all that is in it."""
        key = _parse_path(path)
        if not key:
            raise InvalidRequest("Cannot delete the /memories directory itself")
        keys = await self._list_keys(key)
        if not keys:
            raise InvalidRequest(f"The path {path} does not exist")
        for start in range(0, len(keys), RECORD_CHANGES):
            await self._records.change([self._records.make_delete(one) for one in keys[start : start + RECORD_CHANGES]])
        return f"Successfully deleted {path}"

    async def rename(self, old_path: str, new_path: str) -> str:
        """Rename or move a file or a folder. A folder with more than 50 files is moved in several transactions, 50 files at a time."""
        old, new = _parse_path(old_path), _parse_path(new_path)
        if not old:
            raise InvalidRequest("Cannot rename the /memories directory itself")
        if not new or await self._list_keys(new) or await self._find_file_above(new):
            raise InvalidRequest(f"The destination {new_path} already exists")
        keys = await self._list_keys(old)
        if not keys:
            raise InvalidRequest(f"The path {old_path} does not exist")
        if new.startswith(f"{old}/"):
            raise InvalidRequest(f"Cannot move {old_path} into itself")
        for start in range(0, len(keys), RECORD_CHANGES // 2):
            found = await self._records.get_many(keys[start : start + RECORD_CHANGES // 2])
            puts = [
                self._records.make_put(new + key.removeprefix(old), one.value, expect=0) for key, one in found.items()
            ]
            await self._records.change(
                [*puts, *(self._records.make_delete(key, expect=one.version) for key, one in found.items())]
            )
        return f"Successfully renamed {old_path} to {new_path}"

    async def clear(self) -> str:
        """Delete all files."""
        await self._records.clear()
        return "All memory cleared"

    # -- files ---------------------------------------------------------------

    async def _read(self, key: str) -> str | None:
        record = await self._records.get(key)
        return None if record is None else str(record.value)

    async def _write(self, key: str, content: str, expect: int) -> None:
        if len(content.encode(errors="surrogatepass")) > MEMORY_FILE_BYTES:
            raise TooLarge(f"The file would have more than {MEMORY_FILE_BYTES:,} bytes; split it into several files.")
        await self._records.put(key, content, expect=expect)

    async def _edit(self, path: str, edit: Callable[[str], str]) -> None:
        """Change the content of a file. If another writer has changed the file in between, apply `edit` again to the new content."""
        key = _parse_path(path)
        for _ in range(_TRIES):
            record = await self._records.get(key) if key else None
            if record is None:
                if not key or await self._has_files_below(key):
                    raise InvalidRequest(f"The path {path} is not a file.")
                raise InvalidRequest(f"The path {path} does not exist. Please provide a valid path.")
            try:
                await self._write(key, edit(str(record.value)), record.version)
            except StaleRecord:
                continue
            return
        raise Conflict(f"The file {path} is being edited constantly: try again.")

    async def _list_keys(self, key: str) -> list[str]:
        """Return the keys of a file, or of all files in a folder."""
        found = [key] if key and await self._records.get(key) is not None else []
        after: str | None = None
        while True:
            page = await self._records.list(f"{key}/" if key else "", after=after, limit=1_000, values=False)
            found += [one.name.key for one in page.records]
            if not page.has_more:
                return found
            after = page.records[-1].name.key

    async def _has_files_below(self, key: str) -> bool:
        return bool((await self._records.list(f"{key}/", limit=1, values=False)).records)

    async def _find_file_above(self, key: str) -> str | None:
        """Return the first parent of a path that is a file and therefore cannot be a folder; None if there is no such parent."""
        parts = key.split("/")
        above = ["/".join(parts[:number]) for number in range(1, len(parts))]
        return next(iter(await self._records.get_many(above)), None) if above else None

    async def _view_folder(self, path: str, key: str) -> str:
        prefix, sizes = f"{key}/" if key else "", dict[str, int]()
        async for record in self._records.iterate(prefix):
            sizes[record.key.removeprefix(prefix)] = len(str(record.value).encode())
            if len(sizes) >= MEMORY_FILES_LISTED:
                break
        if key and not sizes:
            raise InvalidRequest(f"The path {path} does not exist. Please provide a valid path.")
        items: dict[str, int] = {}
        for name, size in sizes.items():
            parts = name.split("/")
            if not any(part.startswith(".") for part in parts[:2]):
                for depth in range(1, min(len(parts), 3)):
                    items["/".join(parts[:depth]) + "/"] = _FOLDER_SIZE
                if len(parts) <= 2:
                    items["/".join(parts)] = size
        ordered = sorted(items, key=lambda name: name.rstrip("/").split("/"))
        lines = [
            f"{_format_size(_FOLDER_SIZE)}\t{path}",
            *(f"{_format_size(items[one])}\t{path}/{one}" for one in ordered),
        ]
        head = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:"
        return "\n".join([head, *lines])


def _parse_path(path: str) -> str:
    """Return a path below `/memories`, without `.` and `..`; empty for `/memories` itself."""
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        raise InvalidRequest(f"Path must start with /memories, got: {path}")
    parts: list[str] = []
    for part in path.removeprefix(ROOT).split("/"):
        if part == "..":
            if not parts:
                raise InvalidRequest(f"Path {path} would escape /memories directory")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _number(lines: Sequence[str], first: int) -> str:
    return "\n".join(f"{number:>{_WIDTH}}\t{line}" for number, line in enumerate(lines, start=first))


def _find_lines(content: str, text: str) -> list[int]:
    """Return the line numbers of the first occurrences of a text, at most `_SHOWN_MATCHES`, including overlapping ones."""
    found: list[int] = []
    line, before, at = 1, 0, content.find(text)
    while at >= 0 and len(found) < _SHOWN_MATCHES:
        line, before = line + content.count("\n", before, at), at
        found.append(line)
        at = content.find(text, at + 1)
    return found


def _format_size(size: int) -> str:
    """Format a number of bytes as the SDK does: `0B`, `812B`, `1.5K`, `4K`."""
    power = min(max(size.bit_length() - 1, 0) // 10, 3)
    value = size / 1024**power
    return f"{value:.0f}{'BKMG'[power]}" if value == int(value) else f"{value:.1f}{'BKMG'[power]}"
