"""REST API for the files of Anthropic's memory tool: read their versions, and review changes that are held."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from holdfast.domain.objects import Answer, NonEmpty, Page, Request, json_schema
from holdfast.limits import MEMORY_FILES_HELD
from holdfast.memory.files import FileVersion, HeldChange, MemoryFiles
from holdfast.numbers import check_whole
from holdfast.server.http import Call
from holdfast.server.routes import Routes
from holdfast.sessions.memory_files import open_memory_files

routes = Routes("memories")
_FILES: Final = "/v1/users/{user_id}/memory_files"
_Number = Annotated[int, json_schema(minimum=1)]
_Agent = Annotated[
    str | None, json_schema(description="agent that has the files; unset: files of requests without an agent")
]


class FilesQuery(Request, kw_only=True):
    """Query parameters that name the files of an agent."""

    agent: _Agent = None


class ListQuery(FilesQuery, kw_only=True):
    """Query parameters of a list of held changes, or of the versions of a file."""

    path: NonEmpty | None = None
    """Path of a file, beginning with `/memories`: list its versions instead."""
    limit: Annotated[int, json_schema(minimum=1, maximum=MEMORY_FILES_HELD)] = 20
    after: _Number | None = None
    """`last_id` of the previous page, after which this page begins."""


class ChangeReview(Request):
    """A decision about a change of a memory file that is held."""

    decision: Literal["accept", "reject"]
    """`accept`: run the command now; `reject`: delete the change."""


class FileVersionList(Page[FileVersion, int]):
    """The versions of a memory file, newest first. There is only one page."""


class HeldChangeList(Page[HeldChange, int]):
    """A page of held changes, oldest first."""


class ReviewedChange(Answer, kw_only=True):
    """Result of a review of a held change."""

    object: Literal["memory_file.review"] = "memory_file.review"
    id: _Number
    decision: Literal["accept", "reject"]
    answer: str | None
    """Answer of the accepted command; null if the change was rejected."""


@routes.add("GET", _FILES, "read", error_statuses=(404,), answer=(HeldChangeList, FileVersionList))
async def list_files(call: Call, query: ListQuery) -> HeldChangeList | FileVersionList:
    """List the changes of memory files that wait for a review, oldest first, or the versions of one file, newest first.

    The newest version of a file is its content.
    """
    check_whole(query.limit, "limit", 1, MEMORY_FILES_HELD)
    files = _open(call, query)
    if query.path is not None:
        found = await files.list_versions(query.path)
        return FileVersionList.of(found, has_more=False, by="number")
    left = [one for one in await files.list_held() if one.id > (query.after or 0)]
    return HeldChangeList.of(left[: query.limit], has_more=len(left) > query.limit)


@routes.add("POST", f"{_FILES}/{{change_id}}/review", "write", error_statuses=(404,))
async def review(call: Call, query: FilesQuery, body: ChangeReview) -> ReviewedChange:
    """Accept or reject a held change of a memory file.

    If an accepted command cannot be run any more, for example because its file was deleted, the answer is an error, and the change stays held.
    """
    number = call.get_path_number("change_id", "change")
    answer = await _open(call, query).review(number, body.decision)
    return ReviewedChange(id=number, decision=body.decision, answer=answer or None)


def _open(call: Call, query: FilesQuery) -> MemoryFiles:
    """Return the memory files of the user in the path. Raises `UserNotFound` if the key belongs to another user."""
    return open_memory_files(call.hf.engine, call.get_owner_or_default(call.path["user_id"]), query.agent)
