"""What clients of each API send, kind by kind, and the clients: for tests that nothing is lost on the way.

Each word that begins with `zq` must reach the model. Other values must only come back to the client.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import httpx2

from holdfast.testing import AnthropicUpstream, ResponsesUpstream, ScriptedUpstream
from tests.behaviour.kit.claude import PICTURE, PIXEL, Row, text
from tests.behaviour.kit.messages import assistant, result, system, user

WORD: Final = re.compile(r"zq[a-z]+")
PDF: Final = "JVBERi0xLjQK"
LINK: Final = "https://example.org/zqlink.png"
WAVE: Final = "UklGRg=="
UPSTREAMS: Final[Mapping[str, tuple[type[ScriptedUpstream], Row]]] = {
    "chat": (ScriptedUpstream, {"profile": "openai"}),
    "messages": (AnthropicUpstream, {"provider": "anthropic", "model": "claude-sonnet-4-5"}),
    "responses": (ResponsesUpstream, {"api": "responses", "model": "gpt-5"}),
}
"""The server of each API, and how a configuration names it."""


def find_words(value: Any) -> set[str]:
    """Return all marked words in a JSON value."""
    return set(WORD.findall(json.dumps(value)))


# -- Chat Completions ----------------------------------------------------------------


def image_url(url: str, **more: Any) -> Row:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def call(call_id: str, arguments: str, name: str = "look", **more: Any) -> Row:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def _made_calls(*made: Row, **more: Any) -> Row:
    return {"role": "assistant", "content": None, "tool_calls": list(made), **more}


CHAT: Final[Mapping[str, list[Row]]] = {
    "texts": [
        system([text("zqrule. "), text("zqsecond.")]),
        {"role": "developer", "content": "zqdeveloper."},
        user([text("zqone "), text("zqtwo")], name="zqann"),
    ],
    "later-system": [user("zqa"), assistant("zqb"), system("zqc"), user("zqd")],
    "pictures": [user([text("zqsee"), image_url(LINK), image_url(f"data:image/png;base64,{PIXEL}", detail="low")])],
    "files": [
        user(
            [
                {
                    "type": "file",
                    "file": {"filename": "zqpaper.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
                },
                text("zqread"),
            ]
        )
    ],
    "stored-file": [user([{"type": "file", "file": {"file_id": "file-zqid"}}, text("zqread")])],
    "audio": [user([{"type": "input_audio", "input_audio": {"data": WAVE, "format": "wav"}}, text("zqhear")])],
    "calls": [
        user("zqgo"),
        _made_calls(call("c1", '{"a" : 1, "zqodd": "\\u00e4"}'), call("c2", '{"zqcut": [1,')),
        result("c1", "zqfound"),
        result("c2", [text("zqpart "), text("zqother")]),
    ],
    "calls-with-text": [user("zqgo"), _made_calls(call("c1", "", "zqname"), content="zqwait"), result("c1", "")],
    "picture-in-result": [
        user("zqgo"),
        _made_calls(call("c1", "{}")),
        result("c1", [text("zqshot"), image_url(LINK)]),
    ],
    "custom-call": [
        user("zqgo"),
        _made_calls({"id": "c1", "type": "custom", "custom": {"name": "zqrun", "input": "zqfree text"}}),
        result("c1", "zqdone"),
    ],
    "reasoning": [user("zqgo"), assistant("zqsaid", reasoning_content="thought"), user("zqnext")],
    "signed": [
        user("zqgo"),
        assistant("zqsaid", thinking_blocks=[{"type": "thinking", "thinking": "t", "signature": "s"}]),
        user("zqnext"),
    ],
    "details": [
        user("zqgo"),
        assistant("zqsaid", reasoning_details=[{"type": "reasoning.text", "text": "t", "format": "x", "index": 0}]),
        user("zqnext"),
    ],
    "refusal": [user("zqgo"), {"role": "assistant", "content": None, "refusal": "zqno"}, user("zqnext")],
    "refusal-part": [user("zqgo"), assistant([{"type": "refusal", "refusal": "zqno"}]), user("zqnext")],
    "annotations": [
        user("zqgo"),
        assistant("zqsaid", annotations=[{"type": "url_citation", "url_citation": {"url": "u", "title": "t"}}]),
        user("zqnext"),
    ],
    "unknown-fields": [
        user([text("zqone", mark={"x": 1})], mark=[1]),
        _made_calls(call("c1", "{}", mark=2), mark=None),
        result("c1", "zqfound", mark="m"),
    ],
    "unknown-part": [user([{"type": "map", "map": {"place": "zqplace"}}, text("zqwhere")])],
}

# -- Anthropic Messages ------------------------------------------------------------------


def _document(source: Row, **more: Any) -> Row:
    return {"type": "document", "source": source, **more}


def _use(call_id: str, given: Any, name: str = "look", **more: Any) -> Row:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given, **more}


def _result(call_id: str, content: Any, **more: Any) -> Row:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


SEARCH: Final = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [
            {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "e", "page_age": None}
        ],
    },
]
CITED: Final = {"type": "char_location", "cited_text": "c", "document_index": 0, "document_title": None}
MESSAGES: Final[Mapping[str, list[Row]]] = {
    "texts": [user([text("zqone ", cache_control={"type": "ephemeral"}), text("zqtwo")])],
    "string": [user("zqone"), assistant("zqtwo"), user("zqthree")],
    "pictures": [user([text("zqsee"), {"type": "image", "source": {"type": "url", "url": LINK}}, PICTURE])],
    "stored-picture": [user([{"type": "image", "source": {"type": "file", "file_id": "file_zqid"}}, text("zqsee")])],
    "document-text": [
        user(
            [
                _document(
                    {"type": "text", "media_type": "text/plain", "data": "zqplain"},
                    title="zqtitle",
                    context="zqcontext",
                    citations={"enabled": True},
                )
            ]
        )
    ],
    "document-content": [
        user([_document({"type": "content", "content": [text("zqfirst"), text("zqlast")]}, title="zqtitle")])
    ],
    "document-string": [user([_document({"type": "content", "content": "zqwhole"}, title="zqtitle")])],
    "document-file": [user([_document({"type": "file", "file_id": "file_zqid"}, title="zqtitle"), text("zqread")])],
    "document-url": [
        user([_document({"type": "url", "url": "https://example.org/zqpaper.pdf"}, title="zqtitle", context="zqabout")])
    ],
    "document-pdf": [
        user(
            [_document({"type": "base64", "media_type": "application/pdf", "data": PDF}, title="zqtitle"), text("zqx")]
        )
    ],
    "calls": [
        user("zqgo"),
        assistant([text("zqwait"), _use("c1", {"zqa": ["ä", 1.5]}), _use("c2", {}, "zqother")]),
        user(
            [
                _result("c1", [text("zqfound"), PICTURE]),
                _result("c2", "zqbroken", is_error=True, cache_control={"type": "ephemeral"}),
                text("zqalso"),
            ]
        ),
    ],
    "odd-input": [user("zqgo"), assistant([_use("c1", ["zqlist"])]), user([_result("c1", "zqdone")])],
    "empty-result": [user("zqgo"), assistant([_use("c1", {})]), user([{"type": "tool_result", "tool_use_id": "c1"}])],
    "document-in-result": [
        user("zqgo"),
        assistant([_use("c1", {})]),
        user([_result("c1", [_document({"type": "content", "content": [text("zqfirst")]}, title="zqtitle")])]),
    ],
    "search-result": [
        user(
            [
                {
                    "type": "search_result",
                    "source": "https://example.org/zqsource",
                    "title": "zqtitle",
                    "content": [text("zqfound")],
                    "citations": {"enabled": True},
                }
            ]
        )
    ],
    "reasoning": [
        user("zqgo"),
        assistant(
            [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                text("zqsaid"),
            ]
        ),
        user("zqnext"),
    ],
    "server-tool": [user("zqgo"), assistant([text("zqlet"), *SEARCH, text("zqsaid")]), user("zqnext")],
    "citations": [user("zqgo"), assistant([text("zqsaid", citations=[CITED]), text("zqmore")]), user("zqnext")],
    "unknown-fields": [
        user([text("zqone", mark={"x": 1})], note=[1]),
        assistant([_use("c1", {"zqa": 1}, mark=2)], note=True),
        user([_result("c1", [text("zqfound", mark=3)], mark="m")], note={}),
    ],
    "unknown-string": [user("zqone", note=[1])],
    "unknown-block": [user([{"type": "map", "place": "zqplace"}, text("zqwhere")])],
}

# -- Responses -------------------------------------------------------------------------------


def item(role: str, *parts: Row, **more: Any) -> Row:
    return {"type": "message", "role": role, "content": list(parts), **more}


def said(words: str, **more: Any) -> Row:
    return {"type": "output_text", "text": words, "annotations": [], "logprobs": [], **more}


def given(words: str, **more: Any) -> Row:
    return {"type": "input_text", "text": words, **more}


def _call(call_id: str, arguments: str, name: str = "look", **more: Any) -> Row:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def _output(call_id: str, output: Any, **more: Any) -> Row:
    return {"type": "function_call_output", "call_id": call_id, "output": output, **more}


RESPONSES: Final[Mapping[str, list[Row]]] = {
    "texts": [
        item("system", given("zqrule. "), given("zqsecond")),
        item("developer", given("zqdeveloper")),
        item("user", given("zqone "), given("zqtwo")),
    ],
    "short": [{"role": "user", "content": "zqone"}, {"role": "assistant", "content": "zqtwo"}, user("zqthree")],
    "replies": [item("user", given("zqa")), item("assistant", said("zqb "), said("zqc")), item("user", given("zqd"))],
    "two-replies": [
        item("user", given("zqa")),
        item("assistant", said("zqb"), phase="commentary"),
        item("assistant", said("zqc"), phase="final_answer"),
        item("user", given("zqd")),
    ],
    "two-plain-replies": [
        item("user", given("zqa")),
        item("assistant", said("zqb")),
        item("assistant", said("zqc")),
        item("user", given("zqd")),
    ],
    "pictures": [
        item(
            "user",
            given("zqsee"),
            {"type": "input_image", "image_url": LINK, "detail": "high"},
            {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"},
        )
    ],
    "picture-without-detail": [item("user", given("zqsee"), {"type": "input_image", "image_url": LINK})],
    "files": [
        item(
            "user",
            {"type": "input_file", "filename": "zqpaper.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
            given("zqread"),
        )
    ],
    "file-url": [item("user", {"type": "input_file", "file_url": "https://example.org/zqpaper.pdf"}, given("zqread"))],
    "stored-file": [
        item("user", {"type": "input_file", "file_id": "file-zqid"}, {"type": "input_image", "file_id": "file-zqpic"})
    ],
    "calls": [
        item("user", given("zqgo")),
        _call("c1", '{"a" : 1, "zqodd": "\\u00e4"}'),
        _call("c2", '{"zqcut": [1,'),
        _output("c1", "zqfound"),
        _output("c2", [given("zqpart"), {"type": "input_image", "image_url": LINK, "detail": "auto"}]),
    ],
    "text-between": [
        item("user", given("zqgo")),
        _call("c1", "{}"),
        item("assistant", said("zqwait")),
        _output("c1", "zqfound"),
    ],
    "custom-call": [
        item("user", given("zqgo")),
        {"type": "custom_tool_call", "call_id": "c1", "name": "zqrun", "input": "zqfree text"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "zqdone"},
    ],
    "reasoning": [
        item("user", given("zqgo")),
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "t"}],
            "encrypted_content": "sealed:e",
        },
        item("assistant", said("zqsaid")),
        item("user", given("zqnext")),
    ],
    "refusal": [
        item("user", given("zqgo")),
        item("assistant", {"type": "refusal", "refusal": "zqno"}),
        item("user", given("zqnext")),
    ],
    "annotations": [
        item("user", given("zqgo")),
        item(
            "assistant",
            said("zqsaid", annotations=[{"type": "url_citation", "url": "u", "title": "t"}]),
        ),
        item("user", given("zqnext")),
    ],
    "hosted": [
        item("user", given("zqgo")),
        {"type": "web_search_call", "action": {"type": "search", "query": "q"}},
        item("assistant", said("zqsaid")),
        item("user", given("zqnext")),
    ],
    "unknown-fields": [
        item("user", given("zqone", mark={"x": 1}), mark=[1]),
        item("assistant", said("zqtwo", mark=1), mark=2),
        _call("c1", "{}", mark=3),
        _output("c1", [given("zqfound", mark=4)], mark=5),
        item("system", given("zqlate"), mark=6),
    ],
    "unknown-part": [item("user", {"type": "input_map", "place": "zqplace"}, given("zqwhere"))],
    "unknown-item": [
        item("user", given("zqone")),
        {"type": "new_kind", "value": 1},
        item("user", given("zqtwo")),
    ],
}

# -- the clients ------------------------------------------------------------------------------


class Client:
    """A client of one API, which keeps its history as the API returns it.

    Attributes:
        path: path of the endpoint.
        kinds: histories by kind, each of which ends with what a model answers to.
        field: field of a request that has the history.
    """

    path: str
    kinds: Mapping[str, list[Row]]
    field = "messages"
    more: ClassVar[Row] = {}

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def send(self, history: Sequence[Row], **fields: Any) -> tuple[Row, str]:
        """Send a history; return the answer and the id of its session."""
        body = {"model": "default", self.field: history, **self.more, **fields}
        answer = await self.http.post(self.path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json(), answer.headers["x-session-id"]

    def extend(self, history: Sequence[Row], answer: Row) -> list[Row]:
        """Return the history with the answer and one more message, as a client sends them."""
        raise NotImplementedError

    def make_results(self, answer: Row) -> list[Row]:
        """Return the messages with a result for each call of an answer."""
        raise NotImplementedError

    async def read(self, session: str, answer: Row) -> list[Row]:
        """Return what the client sent, as it can read it from the server."""
        found = (await self.http.get(f"/v1/sessions/{session}")).json()
        rows = [*found["system_messages"], *found["messages"]]
        return [self.to_sent(row) for row in rows if row["role"] != "note"]

    def to_sent(self, row: Row) -> Row:
        """Return an entry without the fields that Holdfast sets."""
        own = ("seq", "turn_id", "timestamp", "tokens", "unit", "agent", "metadata", "importance")
        return {name: value for name, value in row.items() if name not in own}

    def normalize(self, history: Sequence[Row]) -> list[Row]:
        """Return a history in the form in which it is read."""
        return list(history)


class ChatClient(Client):
    path = "/v1/chat/completions"
    kinds = CHAT

    def extend(self, history: Sequence[Row], answer: Row) -> list[Row]:
        return [*history, answer["choices"][0]["message"], user("zqagain")]

    def make_results(self, answer: Row) -> list[Row]:
        return [result(one["id"], "zqfound") for one in answer["choices"][0]["message"]["tool_calls"]]


class MessagesClient(Client):
    path = "/v1/messages"
    kinds = MESSAGES
    more: ClassVar[Row] = {"max_tokens": 100}

    def extend(self, history: Sequence[Row], answer: Row) -> list[Row]:
        return [*history, assistant(answer["content"]), user("zqagain")]

    def make_results(self, answer: Row) -> list[Row]:
        called = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
        return [user([_result(call_id, "zqfound") for call_id in called])]

    async def read(self, session: str, answer: Row) -> list[Row]:
        read: list[Row] = []
        for row in await super().read(session, answer):
            blocks, role, rest = _to_blocks(row)
            if read and read[-1]["role"] == role:
                read[-1]["content"] += blocks
                read[-1] |= rest
            else:
                read.append({"role": role, "content": blocks, **rest})
        return read

    def normalize(self, history: Sequence[Row]) -> list[Row]:
        return [
            {**one, "content": [text(one["content"])] if isinstance(one["content"], str) else one["content"]}
            for one in history
        ]


def _to_blocks(row: Row) -> tuple[list[Row], str, Row]:
    """Return the blocks of an entry, its role in Anthropic's API, and other fields of its message."""
    content = row.get("content")
    if row["role"] == "tool":
        rest = {
            name: value
            for name, value in row.items()
            if name not in ("role", "tool_call_id", "note") and value is not None
        }
        note = {"note": row["note"]} if "note" in row else {}
        return [{"type": "tool_result", "tool_use_id": row["tool_call_id"], **rest}], "user", note
    blocks = [text(content)] if isinstance(content, str) else content or []
    for one in row.get("tool_calls", ()):
        rest = {name: value for name, value in one.items() if name not in ("id", "type", "function")}
        function = one["function"]
        blocks = [*blocks, _use(one["id"], json.loads(function["arguments"]), function["name"], **rest)]
    rest = {name: value for name, value in row.items() if name not in ("role", "content", "tool_calls")}
    return blocks, row["role"], rest


class ResponsesClient(Client):
    path = "/v1/responses"
    kinds = RESPONSES
    field = "input"

    def extend(self, history: Sequence[Row], answer: Row) -> list[Row]:
        return [*history, *answer["output"], item("user", given("zqagain"))]

    def make_results(self, answer: Row) -> list[Row]:
        return [_output(one["call_id"], "zqfound") for one in answer["output"] if one["type"] == "function_call"]

    async def read(self, session: str, answer: Row) -> list[Row]:
        page = await self.http.get(f"/v1/responses/{answer['id']}/input_items", params={"order": "asc", "limit": 100})
        return [_without_id(one) for one in page.json()["data"]]

    def normalize(self, history: Sequence[Row]) -> list[Row]:
        return [self._normalize(one) for one in history]

    def _normalize(self, one: Row) -> Row:
        content, role = one.get("content"), one.get("role")
        if isinstance(content, str):
            content = [said(content) if role == "assistant" else given(content)]
        return {"type": "message", **one, **({} if content is None else {"content": content})}


def _without_id(one: Row) -> Row:
    return {name: value for name, value in one.items() if name not in ("id", "status")}


CLIENTS: Final = {"chat": ChatClient, "messages": MessagesClient, "responses": ResponsesClient}
