"""Files that an agent keeps as its memory, with the commands of Anthropic's memory tool (`memory_20250818`).

The answers have the same words as in the SDK's own implementation, because models are trained on these answers. Files are stored as records.
If another writer changes a file at the same time, the command is tried again with the new content, so no change is lost.

Every change keeps the file's content as a version, with its source: the session, the turn and the agent. A change whose text may come from
a tool's result can be held: it is stored, but the file does not change until the change is accepted.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Protocol, Self, TypeVar

import msgspec

from holdfast.domain.objects import JsonObject, json_schema
from holdfast.domain.record import ChangedRecords, DeleteRecord, PutRecord, Record, RecordChange, RecordInfo, RecordPage
from holdfast.errors import Conflict, InvalidRequest, RecordNotFound, StaleRecord, TooLarge
from holdfast.limits import (
    MEMORY_FILE_BYTES,
    MEMORY_FILE_DEPTH,
    MEMORY_FILE_VERSIONS,
    MEMORY_FILES,
    MEMORY_FILES_HELD,
    MEMORY_FILES_MEASURED_BYTES,
    MEMORY_PATH_BYTES,
    RECORD_CHANGES,
)
from holdfast.memory.file_edits import (
    MISSING,
    insert_lines,
    is_listed,
    list_directory,
    parse_command,
    replace_once,
    show_file,
)

NAMESPACE: Final = "memory_files"
"""First label of the namespace of memory files. The second label, if there is one, is the name of the agent that the files belong to."""
_VERSIONS: Final = ("files", "versions")
_HELD: Final = ("files", "held")
"""Labels below the namespace of the files. Two labels, so that they never equal the namespace of an agent with such a name."""
_T = TypeVar("_T")
ROOT: Final = "/memories"
_Operation = Literal["created", "edited", "renamed", "restored"]
_TOO_LARGE: Final = f"The file would have more than {MEMORY_FILE_BYTES:,} bytes; split it into several files."
_BUSY: Final = "The file {path} is being edited constantly: try again."
_TRIES: Final = 16
"""Maximum number of attempts at a change while other writers change the same file."""


class FileRecords(Protocol):
    """The methods of `holdfast.Records` that memory files use."""

    async def get(self, key: str) -> Record | None: ...
    async def get_many(self, keys: Sequence[str]) -> dict[str, Record]: ...
    async def list(
        self,
        prefix: str = "",
        *,
        after: str | None = None,
        limit: int = 100,
        descending: bool = False,
        values: bool = True,
    ) -> RecordPage: ...
    def iterate(self, prefix: str = "") -> AsyncIterator[Record]: ...
    async def delete(self, key: str) -> bool: ...
    async def clear(self) -> int: ...
    async def change(self, changes: Sequence[RecordChange]) -> ChangedRecords: ...
    def make_put(self, key: str, value: Any, *, expect: int | None = None) -> PutRecord: ...
    def make_delete(self, key: str, *, expect: int | None = None) -> DeleteRecord: ...
    def below(self, *labels: str) -> Self: ...


class ChangeSource(msgspec.Struct, frozen=True):
    """The source of a change of a memory file. Fields that are null are unknown."""

    session_id: str | None = None
    turn: int | None = None
    """Number of the turn in the session."""
    agent: str | None = None
    origin: str | None = None
    """Origin of the words of the new text: `user`, `assistant`, `tool`, `web` or `import`."""


class FileVersion(msgspec.Struct, frozen=True, kw_only=True, rename={"number": "id"}):
    """A version of a memory file."""

    object: Literal["memory_file.version"] = "memory_file.version"
    number: Annotated[int, json_schema(minimum=1)]
    """Number of the version. It counts the changes of the file."""
    path: str
    operation: Literal["created", "edited", "renamed", "restored"]
    text: str
    source: ChangeSource = ChangeSource()


class HeldChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a memory file that waits for a review."""

    object: Literal["memory_file.held_change"] = "memory_file.held_change"
    id: Annotated[int, json_schema(minimum=1)]
    command: JsonObject
    """The command of the memory tool, with its arguments."""
    source: ChangeSource = ChangeSource()


class MemoryFiles:
    """Reads and changes the memory files of one owner. Every error is an `InvalidRequest` with a message for the model.

    Args:
        records: where the files are stored: `hf.records("memory_files", user_id=…)`.
        source: the source of the changes, which is stored with each version.
    """

    def __init__(self, records: FileRecords, source: ChangeSource = ChangeSource()) -> None:  # noqa: B008  # frozen
        self._records = records
        self._versions = records.below(*_VERSIONS)
        self._held = records.below(*_HELD)
        self._source = source

    def with_source(self, source: ChangeSource) -> MemoryFiles:
        """Return the same files, with another source for the changes."""
        return MemoryFiles(self._records, source)

    async def run(self, command: Mapping[str, Any]) -> str:
        """Run a command of the memory tool: an object with `command` and its arguments.

        Raises:
            InvalidRequest: the command or an argument is not valid, or the command is refused.
        """
        name, arguments = parse_command(command)
        answer: str = await getattr(self, name)(**arguments)
        return answer

    async def view(self, path: str, view_range: Sequence[int] | None = None) -> str:
        """Return a file with line numbers, or the list of a folder, up to two levels deep.

        Args:
            path: the file or folder, beginning with `/memories`.
            view_range: first and last line of a file, from 1; -1 as the last line means the end.
        """
        key = _parse_path(path)
        content = await self._read(key) if key else None
        if content is None:
            prefix = f"{key}/" if key else ""
            found = await self._list_files(prefix, MEMORY_FILES)
            if key and not found:
                raise InvalidRequest(MISSING.format(path=path))
            sizes = await self._measure(found, prefix)
            return list_directory(path, {one.removeprefix(prefix): size for one, size in sizes.items()})
        return show_file(path, content, view_range)

    async def create(self, path: str, file_text: str) -> str:
        """Create a file. An existing file or folder is not replaced."""
        key = _parse_path(path)
        for _ in range(_TRIES):
            if not key or await self._list_keys(key, limit=1) or await self._find_file_above(key):
                raise InvalidRequest(f"File {path} already exists")
            if len((await self._records.list(limit=MEMORY_FILES, values=False)).records) >= MEMORY_FILES:
                raise InvalidRequest(
                    f"The memory directory has {MEMORY_FILES:,} files already; delete or merge some first."
                )
            try:
                await self._write(key, file_text, 0, "created")
            except StaleRecord:
                continue
            return f"File created successfully at: {path}"
        raise Conflict(_BUSY.format(path=path))

    async def str_replace(self, path: str, old_str: str, new_str: str) -> str:
        """Replace a text that occurs once in a file."""
        shown = ""

        def edit(content: str) -> str:
            nonlocal shown
            changed, shown = replace_once(path, content, old_str, new_str)
            return changed

        await self._edit(path, edit)
        return f"The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{shown}"

    async def insert(self, path: str, insert_line: int, insert_text: str) -> str:
        """Insert a text after a line of a file; 0 inserts it at the beginning."""
        await self._edit(path, lambda content: insert_lines(content, insert_line, insert_text))
        return f"The file {path} has been edited."

    async def delete(self, path: str) -> str:
        """Delete a file, or a folder with all that is in it. The versions of the files are deleted, too."""
        key = _parse_path(path)
        if not key:
            raise InvalidRequest("Cannot delete the /memories directory itself")
        keys = await self._list_keys(key)
        if not keys:
            raise InvalidRequest(f"The path {path} does not exist")
        batch = _Batch(self._records)
        for one in keys:
            history = await self._list_versions(one, values=False)
            deletes = [self._versions.make_delete(version.name.key) for version in history.records]
            await batch.add([self._records.make_delete(one), *deletes])
        await batch.write()
        return f"Successfully deleted {path}"

    async def rename(self, old_path: str, new_path: str) -> str:
        """Rename or move a file or a folder, with its versions. A file is moved in one transaction, a large folder in several."""
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
        batch = _Batch(self._records)
        for key in keys:
            await batch.add(await self._plan_rename(key, new + key.removeprefix(old)))
        await batch.write()
        return f"Successfully renamed {old_path} to {new_path}"

    async def clear(self) -> str:
        """Delete all files, their versions, and all held changes."""
        for records in (self._held, self._versions, self._records):
            await records.clear()
        return "All memory cleared"

    async def list_paths(self, limit: int) -> list[str]:
        """Return the paths of the first files in the order of their names, at most `limit`."""
        page = await self._records.list(limit=limit, values=False)
        return [f"{ROOT}/{one.name.key}" for one in page.records]

    # -- versions ------------------------------------------------------------

    async def list_versions(self, path: str) -> list[FileVersion]:
        """Return the versions of a file, newest first. The newest one is the content of the file.

        Raises:
            InvalidRequest: the path is not valid.
            RecordNotFound: there is no such file.
        """
        key = _parse_path(path)
        page = await self._list_versions(key) if key else None
        if page is None or not page.records:
            raise RecordNotFound(path)
        return [_decode(one, FileVersion) for one in page.records]

    async def restore(self, path: str, number: int) -> str:
        """Give a file the content of an earlier version again, as a new version.

        Raises:
            InvalidRequest: the path is not valid, or there is no such version.
            RecordNotFound: there is no such file.
        """
        found = [one for one in await self.list_versions(path) if one.number == number]
        if not found:
            raise InvalidRequest(f"{path} has no version {number}, or it is not kept any more", param="number")
        await self._edit(path, lambda _: found[0].text, "restored")
        return f"The file {path} has been edited."

    # -- held changes --------------------------------------------------------

    async def hold(self, command: Mapping[str, Any]) -> HeldChange:
        """Store a command that is run only when it is accepted. A command that is already held is not stored again.

        Raises:
            InvalidRequest: the command or an argument is not valid, or too many changes are held.
        """
        name, arguments = parse_command(command)
        plain = {"command": name, **arguments}
        if len(msgspec.json.encode(plain)) > 2 * MEMORY_FILE_BYTES:
            raise TooLarge(_TOO_LARGE)
        for _ in range(_TRIES):
            held = await self.list_held()
            same = [one for one in held if one.command == plain]
            if same:
                return same[0]
            if len(held) >= MEMORY_FILES_HELD:
                raise InvalidRequest(f"{MEMORY_FILES_HELD} changes of memory files wait for a review, and no more can")
            made = HeldChange(id=held[-1].id + 1 if held else 1, command=plain, source=self._source)
            put = self._held.make_put(_format_number(made.id), msgspec.to_builtins(made), expect=0)
            try:
                await self._records.change([put])
            except StaleRecord:
                continue
            return made
        raise Conflict(_BUSY.format(path="with the held changes"))

    async def list_held(self) -> list[HeldChange]:
        """Return the changes that wait for a review, oldest first."""
        return [_decode(one, HeldChange) async for one in self._held.iterate()]

    async def review(self, change_id: int, decision: Literal["accept", "reject"]) -> str:
        """Decide about a held change. An accepted one is run now, and a rejected one is deleted.

        Returns:
            The answer of the command, or an empty text if the change is rejected.

        Raises:
            RecordNotFound: no change with this id is held.
            InvalidRequest: the command cannot be run any more, for example because the file was deleted. The change stays held.
        """
        record = await self._held.get(_format_number(change_id))
        if record is None:
            raise RecordNotFound(str(change_id))
        held, answer = _decode(record, HeldChange), ""
        if decision == "accept":
            answer = await self.with_source(held.source).run(held.command)
        await self._held.delete(record.key)
        return answer

    # -- files ---------------------------------------------------------------

    async def _read(self, key: str) -> str | None:
        record = await self._records.get(key)
        return None if record is None else str(record.value)

    async def _write(self, key: str, content: str, expect: int, operation: _Operation) -> None:
        """Write a file and its new version in one transaction. Raises `StaleRecord` if another writer was faster."""
        if len(content.encode(errors="surrogatepass")) > MEMORY_FILE_BYTES:
            raise TooLarge(_TOO_LARGE)
        history = (await self._list_versions(key, values=False)).records
        number = _parse_number(history[0].name.key) + 1 if history else 1
        surplus = history[MEMORY_FILE_VERSIONS - 1 :]
        await self._records.change(
            [
                self._records.make_put(key, content, expect=expect),
                self._make_version(key, number, operation, content),
                *(self._versions.make_delete(one.name.key) for one in surplus),
            ]
        )

    def _make_version(self, key: str, number: int, operation: _Operation, content: str) -> PutRecord:
        path = f"{ROOT}/{key}"
        made = FileVersion(number=number, path=path, operation=operation, text=content, source=self._source)
        return self._versions.make_put(_make_prefix(key) + _format_number(number), msgspec.to_builtins(made), expect=0)

    async def _list_versions(self, key: str, *, values: bool = True) -> RecordPage:
        return await self._versions.list(
            _make_prefix(key), limit=MEMORY_FILE_VERSIONS + 1, descending=True, values=values
        )

    async def _plan_rename(self, old: str, new: str) -> list[RecordChange]:
        """Return the changes that move a file and its versions, and note the new path as a version."""
        record = await self._records.get(old)
        if record is None:
            return []
        history = (await self._list_versions(old)).records
        kept = history[: MEMORY_FILE_VERSIONS - 1]
        number = _parse_number(history[0].name.key) + 1 if history else 1
        prefix = _make_prefix(new)
        copies = [
            self._versions.make_put(prefix + one.name.key.rpartition("/")[2], one.value)
            for one in kept
            if isinstance(one, Record)
        ]
        return [
            self._records.make_put(new, record.value, expect=0),
            self._records.make_delete(old, expect=record.version),
            *copies,
            self._make_version(new, number, "renamed", str(record.value)),
            *(self._versions.make_delete(one.name.key) for one in history),
        ]

    async def _edit(self, path: str, edit: Callable[[str], str], operation: _Operation = "edited") -> None:
        """Change the content of a file. If another writer has changed the file in between, apply `edit` again to the new content."""
        key = _parse_path(path)
        for _ in range(_TRIES):
            record = await self._records.get(key) if key else None
            if record is None:
                if not key or bool((await self._records.list(f"{key}/", limit=1, values=False)).records):
                    raise InvalidRequest(f"The path {path} is not a file.")
                raise InvalidRequest(MISSING.format(path=path))
            try:
                await self._write(key, edit(str(record.value)), record.version, operation)
            except StaleRecord:
                continue
            return
        raise Conflict(_BUSY.format(path=path))

    async def _list_keys(self, key: str, *, limit: int = MEMORY_FILES) -> list[str]:
        """Return the key of a file, or the keys of the first files in a folder."""
        if key and await self._records.get(key) is not None:
            return [key]
        return [one.name.key for one in await self._list_files(f"{key}/" if key else "", limit)]

    async def _list_files(self, prefix: str, limit: int) -> list[RecordInfo]:
        """Return the first files whose keys begin with `prefix`, without their contents."""
        found: list[RecordInfo] = []
        while len(found) < limit:
            after = found[-1].name.key if found else None
            page = await self._records.list(prefix, after=after, limit=limit - len(found), values=False)
            found += page.records
            if not page.has_more:
                break
        return found

    async def _measure(self, files: Sequence[RecordInfo], prefix: str) -> dict[str, int]:
        """Return the size of each file in bytes, by its key.

        The store knows only the size of a content as JSON, in which a line break takes two bytes. So the contents of the smallest files
        that are listed are read, up to a limit. The size of each other file is estimated as its size in JSON without the quotation marks.

        Args:
            files: the files, without their contents.
            prefix: beginning of the keys of the files in the folder that is listed.
        """
        sizes = {one.name.key: one.size - 2 for one in files}
        wanted: list[str] = []
        total = 0
        listed = [one for one in files if is_listed(one.name.key.removeprefix(prefix))]
        for one in sorted(listed, key=lambda one: one.size):
            total += one.size
            if total > MEMORY_FILES_MEASURED_BYTES:
                break
            wanted.append(one.name.key)
        for start in range(0, len(wanted), RECORD_CHANGES):
            found = await self._records.get_many(wanted[start : start + RECORD_CHANGES])
            sizes |= {key: len(str(record.value).encode()) for key, record in found.items()}
        return sizes

    async def _find_file_above(self, key: str) -> str | None:
        """Return the first parent of a path that is a file and therefore cannot be a folder; None if there is no such parent."""
        parts = key.split("/")
        above = ["/".join(parts[:number]) for number in range(1, len(parts))]
        return next(iter(await self._records.get_many(above)), None) if above else None


class _Batch:
    """Collects changes and writes as many as possible in each transaction. Changes that are added together are written together."""

    def __init__(self, records: FileRecords) -> None:
        self._records = records
        self._changes: list[RecordChange] = []

    async def add(self, changes: Sequence[RecordChange]) -> None:
        """Add changes. Write the earlier ones first if there are too many for one transaction."""
        if len(self._changes) + len(changes) > RECORD_CHANGES:
            await self.write()
        self._changes += changes

    async def write(self) -> None:
        """Write the collected changes."""
        changes, self._changes = self._changes, []
        if changes:
            await self._records.change(changes)


def _parse_path(path: str) -> str:
    """Return a path below `/memories`, without `.` and `..`; empty for `/memories` itself.

    Raises:
        InvalidRequest: the path is outside of `/memories`, too long or too deep, or has control characters.
    """
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
    key = "/".join(parts)
    if len(parts) > MEMORY_FILE_DEPTH:
        raise InvalidRequest(f"Path has more than {MEMORY_FILE_DEPTH} segments, got: {len(parts)}", param="path")
    if len(key.encode(errors="replace")) > MEMORY_PATH_BYTES:
        raise InvalidRequest(f"Path has more than {MEMORY_PATH_BYTES} bytes below /memories: use shorter names")
    if any(char < " " or char == "\x7f" for char in key):
        raise InvalidRequest(f"Path must not have control characters, got: {path!r}")
    return key


def _make_prefix(key: str) -> str:
    """Return the beginning of the keys of a file's versions. The path is hashed, because a key has a maximum length."""
    return hashlib.blake2b(key.encode(errors="replace"), digest_size=16).hexdigest() + "/"


def _format_number(number: int) -> str:
    return f"{number:012d}"


def _parse_number(key: str) -> int:
    return int(key.rpartition("/")[2])


def _decode(record: Any, kind: type[_T]) -> _T:
    return msgspec.convert(record.value, kind)
