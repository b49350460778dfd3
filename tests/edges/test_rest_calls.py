"""`GET /v1/sessions/{id}/calls` and `…/calls/{call_id}`: pages, prompts as they were sent, access, and refused requests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.edges.rest_kit import assert_error
from tests.edges.schema import Schemas
from tests.edges.server import Served
from tests.edges.test_rest_explain import TURNS, server_with_talk

CALLS = "/v1/sessions/trip/calls"


async def get(served: Served, path: str, schema: str, **parameters: Any) -> dict[str, Any]:
    response = await served.http.get(path, params=parameters)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    document = (await served.http.get("/openapi.json")).json()
    assert Schemas(document).problems(document["components"]["schemas"][schema], answer) == []
    return answer


async def test_calls_are_listed_page_by_page() -> None:
    async with server_with_talk() as served:
        listed: list[str] = []
        page = await get(served, CALLS, "CallList", limit=10, order="desc")
        while True:
            listed += [one["id"] for one in page["data"]]
            if not page["has_more"]:
                break
            page = await get(served, CALLS, "CallList", limit=10, order="desc", after=page["last_id"])
        assert listed == [f"{turn}.0" for turn in reversed(range(TURNS))]
        (first,) = (await get(served, CALLS, "CallList", limit=1))["data"]
        assert (first["id"], first["strategy"], first["budget"], first["common"]) == ("0.0", "digest", 500, None)
        after_turn = await get(served, CALLS, "CallList", limit=1, after="3")
        assert after_turn["data"][0]["id"] == "4.0"


async def test_a_prompt_is_shown_as_it_was_sent_with_marks() -> None:
    """For a call of a turn, the last call of a turn, and the next prompt; what-if changes neither log nor calls."""
    async with server_with_talk() as served:
        shown = await get(served, f"{CALLS}/20.0", "PromptView", log_limit=8, dialect="anthropic")
        assert (shown["exact"], shown["previous"], shown["next"], shown["before"]) == (True, "19.0", "21.0", "19.0")
        assert sum(one["tokens"] for one in shown["sections"]) == shown["window"]
        assert len(shown["log"]) == 8
        assert {mark["state"] for mark in shown["log"]} > {"whole"}
        assert shown["request"]["messages"]
        assert (await get(served, f"{CALLS}/20", "PromptView"))["id"] == "20.0"
        following = await get(served, f"{CALLS}/next", "PromptView")
        assert (following["call"], following["before"]) == (None, f"{TURNS - 1}.0")
        other = await get(served, f"{CALLS}/20.0", "PromptView", strategy="token_window", budget=300)
        assert (other["strategy"]["strategy"], other["budget"], other["exact"]) == ("token_window", 300, None)
        assert await get(served, f"{CALLS}/20.0", "PromptView", log_limit=8, dialect="anthropic") == shown


@pytest.mark.parametrize(
    ("path", "parameters", "status", "param"),
    [
        ("/x", {}, 400, "call_id"),
        ("/99", {}, 404, None),
        ("/0.9", {}, 404, None),
        ("/next", {"log_limit": 201}, 400, "log_limit"),
        ("/next", {"log_after": -2}, 400, "log_after"),
        ("/next", {"strategy": "digets"}, 400, "strategy"),
        ("/next", {"budget": 0}, 400, "budget"),
        ("/next", {"dialect": "x"}, 400, "dialect"),
        ("/next", {"agent": "nobody"}, 400, "agent"),
        ("", {"after": "x"}, 400, "after"),
        ("", {"after": "99"}, 404, None),
    ],
)
async def test_bad_requests_name_the_parameter(
    path: str, parameters: dict[str, Any], status: int, param: str | None
) -> None:
    async with server_with_talk() as served:
        response = await served.http.get(CALLS + path, params=parameters)
        assert_error(response, status)
        assert response.json()["error"]["param"] == param


async def test_a_digest_is_compared_with_its_messages() -> None:
    async with server_with_talk() as served:
        view = await get(served, f"{CALLS}/next", "CompactionView", block="digest", limit=3)
        assert (view["kind"], len(view["sources"]), view["has_more"]) == ("digest", 3, True)
        assert {fact["kind"] for fact in (*view["kept"], *view["lost"])} <= {"identifier", "date", "number", "name"}
        assert_error(await served.http.get(f"{CALLS}/next?block=summary"), 404)
        assert_error(await served.http.get(f"{CALLS}/next?block=poem"), 400)
        assert_error(await served.http.get("/v1/sessions/trip/compactions/9?compare=true"), 404)
