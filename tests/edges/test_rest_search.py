"""`GET /v1/search`: pages, parameters, errors; and recalled messages in a response."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import TickingClock
from tests.edges.schema import Schemas
from tests.edges.server import Served, gateway
from tests.service.rerank_stub import serving

SEARCH = "/v1/search"
AT = 1_700_000_000_000
LOG = [
    {"role": "user", "content": "My gate code is 4711.", "timestamp": AT},
    {"role": "assistant", "content": "Noted: the gate.", "timestamp": AT},
    {"role": "user", "content": "And kelp soup, please.", "timestamp": AT + 60_000},
    {"role": "assistant", "content": "With ginger.", "timestamp": AT + 60_000},
]
FINDER = "agents: {finder: {llm: default, search: {enabled: true, max_results: 3}}}"


@asynccontextmanager
async def searching(*config: str, **options: Any) -> AsyncIterator[Served]:
    """A server with conversations of ada and the default user."""
    async with gateway(lambda _: "ok", *config, **options) as (served, _):
        for user in ("ada", "default"):
            sent = await served.http.post("/v1/sessions", json={"id": "harbour", "user_id": user})
            assert sent.status_code == 201
            put = await served.http.post(f"/v1/sessions/harbour/messages?user_id={user}", json={"messages": LOG})
            assert put.status_code == 200
        assert served.hf.engine.index is not None
        await served.hf.engine.index.settled()
        yield served


async def request_search(served: Served, **parameters: Any) -> Any:
    """Send a search; return the answer."""
    return await served.http.get(SEARCH, params={"q": "gate code", **parameters})


async def check_schema(served: Served, name: str, value: Any) -> None:
    """Fail if a value does not match its component."""
    document = (await served.http.get("/openapi.json")).json()
    assert Schemas(document).problems(document["components"]["schemas"][name], value) == []


@pytest.mark.parametrize("streamed", [False, True])
async def test_client_asks_about_yesterdays_topic(tmp_path: Path, streamed: bool) -> None:
    """With the official client, a day later; its retry and its next turn send no block twice, and the log has none."""
    clock = TickingClock()
    async with gateway(lambda _: "ok", FINDER, store=f"sqlite:///{tmp_path}/chat.db", clock=clock) as (
        served,
        upstream,
    ):

        async def turn(session_id: str, text: str, **more: Any) -> None:
            reply = await served.client.chat.completions.create(
                model="finder",
                user="ada",
                messages=[{"role": "user", "content": text}],
                stream=streamed,
                extra_body={"session_id": session_id},
                **more,
            )
            if streamed:
                async for _ in reply:
                    pass

        await turn("kettle", "How do I descale the kettle?")
        await turn("ferns", "Which fern grows in shade?")
        clock.now += 86_400_000
        question = "Can you remind me what I asked about yesterday?"
        for _ in range(2):
            await turn("today", question, extra_headers={"Idempotency-Key": "one"})
        assert len(upstream.requests) == 3, "what came again was not asked again"
        block, message = upstream.requests[-1].body["messages"]
        assert message == {"role": "user", "content": question}
        assert block["role"] == "user"
        assert all(text in block["content"] for text in ("descale the kettle", "fern grows in shade"))
        await turn("today", "Thank you.")
        assert block not in upstream.requests[-1].body["messages"]
        assert [content for _, content in await served.log("today", "ada")] == [question, "ok", "Thank you.", "ok"]


async def test_unavailable_embedder_is_reported_without_its_address(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        place = f"127.0.0.1:{unused.getsockname()[1]}"
    embedder = f"embedders: {{far: {{base_url: 'http://{place}/v1', model: m}}}}"
    async with gateway([], embedder, "storage: {index: {type: hybrid, embedder: far}}") as (served, _):
        answer = await request_search(served, mode="vector")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "embedding_failed")
    assert "the endpoint cannot be reached" in answer.json()["error"]["message"]
    assert place not in answer.text
    assert place in caplog.text


async def test_reranker_orders_hits_unless_disabled() -> None:
    async with serving() as stub:
        rerank = f"storage: {{index: {{rerank: {{base_url: '{stub.url}', model: m, api_key: sk-r}}}}}}"
        async with searching(rerank) as served:
            plain = (await request_search(served, user_id="ada", rerank="false")).json()
            assert stub.bodies == []
            answer = (await request_search(served, user_id="ada", rerank="true")).json()
            await check_schema(served, "SearchResults", answer)
            hits = answer["data"]
            assert [hit["parts"]["rerank"] for hit in hits] == sorted(
                (len(hit["snippet"]) for hit in hits), reverse=True
            )
            assert sorted(hit["seq"] for hit in plain["data"]) == sorted(hit["seq"] for hit in hits)
            assert stub.headers[0]["authorization"] == "Bearer sk-r"
            first = (await request_search(served, user_id="ada", limit=1)).json()
            second = (await request_search(served, user_id="ada", limit=1, after=first["last_id"])).json()
            assert [page["data"][0]["seq"] for page in (first, second)] == [hit["seq"] for hit in hits[:2]]
            wrong = await request_search(served, rerank="maybe")
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "rerank")
