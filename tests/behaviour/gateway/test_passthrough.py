"""Routes of the upstream that Holdfast does not serve, the upstream's models, and base URLs with too much or too little."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import openai
import pytest
from aiohttp import web
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from holdfast.testing import AnthropicUpstream, Gate, ScriptedUpstream
from tests.behaviour.kit import CLIENT_KEY, UPSTREAM_KEY, Served, bearer, gateway, until

Row = dict[str, Any]
EMBEDDED: Row = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}],
    "model": "e",
    "usage": {"prompt_tokens": 1, "total_tokens": 1},
}
LLMS = "llms: {{default: {{base_url: '{url}', api_key: {key}, model: gpt-4o}}}}"


class Provider:
    """An upstream with any route: it notes what it got, and answers as `reply` says."""

    def __init__(self, reply: Callable[[web.Request], Any] = lambda _: EMBEDDED) -> None:
        self.reply = reply
        self.requests: list[Row] = []
        self.pieces: list[bytes] = []
        """What has arrived of bodies."""
        self.gone = 0
        """How many clients went away before their answer was complete."""
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        got: Row = {"method": request.method, "path": request.raw_path, "headers": request.headers}
        self.requests.append(got)
        try:
            async for piece in request.content.iter_any():
                self.pieces.append(piece)
                got["body"] = got.get("body", b"") + piece
            made = self.reply(request)
            made = await made if asyncio.iscoroutine(made) else made
        except (asyncio.CancelledError, ConnectionError):
            self.gone += 1
            raise
        return made if isinstance(made, web.StreamResponse) else web.json_response(made)


@asynccontextmanager
async def passing(
    *config: str, provider: Provider | None = None, **settings: Any
) -> AsyncIterator[tuple[Served, Provider]]:
    provider = provider or Provider()
    async with gateway((), *config, upstream=provider, **settings) as served:
        yield served, provider


async def embed(served: Served, **fields: Any) -> Any:
    return await served.http.post("/v1/embeddings", json={"input": "Hi.", "model": "e", **fields})


# -- what goes there and comes back --------------------------------------------


async def test_embeddings_come_from_the_default_upstream() -> None:
    """With the server's key in place of the client's, and without what is the client's own."""
    private = {"cookie": "a=b", "x-session-id": "s", "x-forwarded-for": "10.1.1.1", "x-holdfast-key": "hf_no"}
    async with passing() as (served, provider):
        made = await served.openai.embeddings.create(
            model="e", input="Hi.", encoding_format="float", extra_headers=private, extra_query={"dry": "1"}
        )
        assert made.data[0].embedding == [0.5, 1.0]
        (got,) = provider.requests
        assert (got["method"], got["path"]) == ("POST", "/v1/embeddings?dry=1")
        assert json.loads(got["body"]) == {"model": "e", "input": "Hi.", "encoding_format": "float"}
        assert got["headers"]["authorization"] == f"Bearer {UPSTREAM_KEY}"
        assert not {*private, "x-api-key"} & {name.lower() for name in got["headers"]}
        assert CLIENT_KEY not in str(got)
        assert (await served.http.get("/v1/sessions")).json()["data"] == []


async def test_a_body_is_passed_on_byte_by_byte() -> None:
    body = b'{ "input" : "\\u00e9", "input_type":"x", "model" : "e" , "n": 1.50 }'
    async with passing() as (served, provider):
        answer = await served.http.post("/v1/rerank", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, provider.requests[0]["body"]) == (200, body)


async def test_the_model_of_a_body_chooses_the_upstream() -> None:
    other = Provider()
    async with passing(models={"small": (other, {"model": "bge-small", "api_key": "sk-other-key"})}) as (
        served,
        provider,
    ):
        await embed(served, model="small", dimensions=8)
        await embed(served, model="default")
        await embed(served, model="unknown")
        (got,) = other.requests
        assert json.loads(got["body"]) == {"input": "Hi.", "model": "bge-small", "dimensions": 8}
        assert got["headers"]["authorization"] == "Bearer sk-other-key"
        assert [json.loads(one["body"])["model"] for one in provider.requests] == ["gpt-4o", "unknown"]


async def test_status_and_safe_headers_come_back() -> None:
    theirs = {
        "retry-after": "7",
        "x-ratelimit-remaining-requests": "3",
        "content-disposition": "attachment",
        "set-cookie": "a=b",
        "openai-organization": "acme",
        "server": "x",
        "location": "/x",
        "connection": "close",
    }

    def reply(_: web.Request) -> web.Response:
        return web.Response(status=202, body=b"<script>", content_type="text/html", headers=theirs)

    async with passing(provider=Provider(reply)) as (served, _):
        answer = await served.http.post("/v1/audio/speech", json={"input": "Hi."})
        assert (answer.status_code, answer.content) == (202, b"<script>")
        kept = {name: answer.headers.get(name) for name in theirs}
        assert kept == {
            **dict.fromkeys(theirs),
            **{name: theirs[name] for name in list(theirs)[:3]},
        }
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.headers["content-security-policy"].startswith("sandbox")
        assert answer.headers["x-request-id"]


async def test_a_download_streams() -> None:
    """The first piece arrives before the upstream has the second."""
    gate = Gate()

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "audio/mpeg"})
        await response.prepare(request)
        await response.write(b"one")
        await gate.wait()
        await response.write(b"two")
        return response

    async with passing(provider=Provider(reply)) as (served, _):
        create = served.openai.audio.speech.with_streaming_response.create
        async with create(model="tts", voice="alloy", input="Hi.") as speech:
            pieces = speech.iter_bytes()
            assert await anext(pieces) == b"one"
            gate.open()
            assert b"".join([piece async for piece in pieces]) == b"two"


async def test_an_upload_streams() -> None:
    """The upstream gets the first piece before the client has sent the second."""
    gate = Gate()

    async def send() -> AsyncIterator[bytes]:
        yield b"one"
        await gate.wait()
        yield b"two"

    async with passing() as (served, provider):
        headers = {"content-type": "multipart/form-data; boundary=x"}
        sending = asyncio.create_task(served.http.post("/v1/audio/translations", content=send(), headers=headers))
        await until(lambda: provider.pieces == [b"one"])
        gate.open()
        assert (await sending).status_code == 200
        assert provider.requests[0]["body"] == b"onetwo"
        assert provider.requests[0]["headers"]["content-type"] == headers["content-type"]


async def test_files_are_uploaded_and_read_with_the_official_client() -> None:
    about = {"id": "file-1", "object": "file", "bytes": 3, "created_at": 1, "filename": "a.txt", "purpose": "batch"}
    about["status"] = "processed"

    def reply(request: web.Request) -> Any:
        return web.Response(body=b"abc") if request.path.endswith("/content") else about

    async with passing(provider=Provider(reply)) as (served, provider):
        made = await served.openai.files.create(file=("a.txt", b"abc"), purpose="batch")
        assert made.id == "file-1"
        assert b'filename="a.txt"' in provider.requests[0]["body"]
        assert int(provider.requests[0]["headers"]["content-length"]) == len(provider.requests[0]["body"])
        assert (await served.openai.files.content("file-1")).content == b"abc"
        await served.openai.files.delete("file-1")
        assert [(one["method"], one["path"]) for one in provider.requests[1:]] == [
            ("GET", "/v1/files/file-1/content"),
            ("DELETE", "/v1/files/file-1"),
        ]


# -- failures ------------------------------------------------------------------


async def test_errors_of_the_upstream_come_back_without_its_key() -> None:
    error = {"error": {"message": f"Incorrect API key provided: {UPSTREAM_KEY}", "code": "invalid_api_key"}}
    async with passing(provider=Provider(lambda _: web.json_response(error, status=401))) as (served, _):
        answer = await embed(served)
        assert answer.status_code == 401
        assert answer.json()["error"] == {
            "message": "Incorrect API key provided: [redacted]",
            "code": "invalid_api_key",
        }


async def test_an_upstream_that_cannot_be_reached_is_a_502() -> None:
    async with gateway(None, LLMS.format(url="http://127.0.0.1:9/v1", key="sk-x")) as served:
        answer = await embed(served)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unavailable")
        assert answer.json()["error"]["type"] == "server_error"
        assert "127.0.0.1:9" not in answer.text


async def test_redirects_are_not_followed() -> None:
    def reply(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"location": "http://127.0.0.1:9/"})

    async with passing(provider=Provider(reply)) as (served, _):
        answer = await embed(served)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_protocol_error")
        assert "location" not in answer.headers


async def test_an_answer_that_is_cut_off_does_not_look_complete() -> None:
    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return response

    async with passing(provider=Provider(reply)) as (served, _):
        with pytest.raises(openai.APIConnectionError):
            await served.openai.audio.speech.create(model="tts", voice="alloy", input="Hi.")


@pytest.mark.parametrize("began", [False, True], ids=["before the answer", "during the answer"])
async def test_the_call_ends_when_its_client_goes_away(began: bool) -> None:
    gate = Gate()

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if began:
            await response.prepare(request)
            await response.write(b"one")
        await gate.wait()
        return response

    async with passing(provider=Provider(reply)) as (served, provider):
        asking = asyncio.create_task(embed(served))
        await until(lambda: provider.pieces)
        asking.cancel()
        await until(lambda: provider.gone == 1)


# -- who may, and how much -----------------------------------------------------


async def test_keys_decide_as_for_chat() -> None:
    """Reading is not enough. What the provider stores for the server's key is of all users, so it needs a key of none."""
    async with passing() as (served, provider):
        own = {name: bearer(await served.create_key(role=name)) for name in ("read", "write")}
        ada = bearer(await served.create_key(user_id="ada"))
        other = bearer(await served.create_key(tenant="other"))
        rows = [
            (own["read"], 403, 403),
            (own["write"], 200, 200),
            (ada, 200, 403),
            (other, 200, 403),
            ({}, 401, 401),
        ]
        for headers, embeds, reads in rows:
            made = await served.http.post("/v1/embeddings", json={"model": "e"}, headers=headers)
            read = await served.http.get("/v1/files", headers=headers)
            assert (made.status_code, read.status_code) == (embeds, reads)
        assert len(provider.requests) == 4
        assert "hf_" not in str([dict(one["headers"]) for one in provider.requests])


async def test_a_clients_own_key_is_passed_on() -> None:
    """Also to routes with objects that the provider stores, which are the client's own then."""
    async with passing("gateway: {upstream_auth: passthrough}") as (served, provider):
        key = await served.create_key(user_id="ada")
        headers = {"authorization": "Bearer sk-of-ada", "x-holdfast-key": key}
        assert (await served.http.get("/v1/files", headers=headers)).status_code == 200
        assert provider.requests[0]["headers"]["authorization"] == "Bearer sk-of-ada"
        assert key not in str(provider.requests[0]["headers"])
        answer = await served.http.get("/v1/files", headers={"x-holdfast-key": key})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "upstream_key_missing")


async def send_pieces() -> AsyncIterator[bytes]:
    for _ in range(40):
        yield b"x" * 1024


async def test_bodies_have_the_limits_of_the_server_and_of_the_key() -> None:
    upload = {"content-type": "application/octet-stream"}
    async with passing("gateway: {max_body: 32KiB}") as (served, provider):
        whole = await embed(served, input="x" * 40_000)
        pieces = await served.http.post("/v1/audio/x", content=send_pieces(), headers=upload)
        packed = await served.http.post("/v1/audio/x", content=b"x", headers={**upload, "content-encoding": "gzip"})
        assert [one.status_code for one in (whole, pieces, packed)] == [413, 413, 415]
        assert all("body" not in one or len(one["body"]) < 40_960 for one in provider.requests)
        key = bearer(await served.create_key(max_body=1024))
        small = await served.http.post("/v1/audio/x", content=send_pieces(), headers={**upload, **key})
        assert small.status_code == 413


async def test_requests_count_for_the_rate_of_a_key() -> None:
    async with passing() as (served, _):
        key = bearer(await served.create_key(rate=4))
        statuses = [(await served.http.get("/v1/files", headers=key)).status_code for _ in range(2)]
        assert statuses == [200, 429]


async def test_calls_wait_for_a_model_with_max_requests() -> None:
    gate = Gate()

    async def reply(request: web.Request) -> Row:
        if request.path.endswith("embeddings"):
            await gate.wait()
        return EMBEDDED

    async with passing(provider=Provider(reply), llm={"max_requests": 1}) as (served, provider):
        first, second = (asyncio.create_task(embed(served)) for _ in range(2))
        await until(lambda: len(provider.requests) == 1)
        gate.open()
        assert [(await first).status_code, (await second).status_code] == [200, 200]


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/nothing", "/v1/embeddings/../organization", "/v1/files/%2e%2e/organization", "/v1/files/a%2Fb"),
        *("/v1/files//x", "/v1/sessions/s/nothing", "/v1/embeddings/..%2f..%2fadmin", "/v1/organization/api_keys"),
    ],
)
async def test_other_paths_never_leave(path: str) -> None:
    async with passing() as (served, provider):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert b" 404 " in answer.splitlines()[0]
        assert b'"not_found"' in answer
        assert provider.requests == []


async def test_it_can_be_turned_off() -> None:
    async with passing("gateway: {passthrough: false}") as (served, provider):
        answer = await embed(served)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        assert provider.requests == []


async def test_the_offline_model_has_no_upstream() -> None:
    async with gateway(None, "llms: {default: {provider: offline}}") as served:
        answer = await embed(served)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_upstream")
        assert "the model 'offline' has none" in answer.json()["error"]["message"]
        assert [one["id"] for one in (await served.http.get("/v1/models")).json()["data"]] == ["default"]


# -- models --------------------------------------------------------------------

AGENT = "agents: {helper: {description: Helps.}}"


async def test_the_upstreams_models_are_listed_and_chat_takes_them() -> None:
    """A name that the configuration has is listed once, as its own."""
    upstream = ScriptedUpstream(["Yes."], models=("gpt-9", "default", "helper"))
    async with gateway((), AGENT, upstream=upstream) as served:
        listed = [(one.id, one.owned_by) async for one in served.openai.models.list()]
        assert listed == [("helper", "holdfast-agent"), ("default", "gpt-4o"), ("gpt-9", "upstream")]
        assert (await served.chat("Hi.", model="gpt-9"))["choices"][0]["message"]["content"] == "Yes."
        assert served.sent["model"] == "gpt-9"
        shown = [(one.id, one.display_name) async for one in served.anthropic.models.list(limit=2)]
        assert shown == [("helper", "agent helper: Helps."), ("default", "gpt-4o"), ("gpt-9", "gpt-9")]


async def test_pages_of_models() -> None:
    async with gateway((), AGENT, upstream=ScriptedUpstream(models=("gpt-9",))) as served:
        ids: list[str] = []
        after: Row = {}
        for _ in range(3):
            page = (await served.http.get("/v1/models", params={"limit": 1, **after})).json()
            assert page["has_more"] is (len(ids) < 2)
            ids += [one["id"] for one in page["data"]]
            after = {"after_id": page["last_id"]}
        assert ids == ["helper", "default", "gpt-9"]
        wrong = await served.http.get("/v1/models", params={"after_id": "odd"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "after_id")


async def test_the_upstreams_list_is_asked_once_a_minute_and_never_missed() -> None:
    gate, lists = Gate(), list[Row]([{"object": "list", "data": [{"id": "a", "created": 7}]}, {"odd": 1}])

    async def reply(_: web.Request) -> Row:
        await gate.wait()
        return lists.pop(0)

    async with passing(provider=Provider(reply)) as (served, provider):
        both = [asyncio.create_task(served.http.get("/v1/models")) for _ in range(2)]
        await until(lambda: provider.requests)
        gate.open()
        for answer in [await one for one in both]:
            assert answer.json()["data"][1] == {"id": "a", "object": "model", "created": 7, "owned_by": "upstream"}
        assert len(provider.requests) == 1
    for broken in (Provider(lambda _: {"odd": 1}), Provider(lambda _: web.Response(status=500))):
        async with passing(provider=broken) as (served, provider):
            assert [one["id"] for one in (await served.http.get("/v1/models")).json()["data"]] == ["default"]


async def test_models_are_listed_with_the_key_of_each_client() -> None:
    provider = Provider(lambda request: {"data": [{"id": request.headers["authorization"].removeprefix("Bearer sk-")}]})
    async with passing("gateway: {upstream_auth: passthrough}", provider=provider) as (served, _):
        for name in ("ada", "bob"):
            headers = {"authorization": f"Bearer sk-{name}", "x-holdfast-key": await served.create_key(user_id=name)}
            listed = (await served.http.get("/v1/models", headers=headers)).json()["data"]
            assert [one["id"] for one in listed] == ["default", name]


async def test_models_of_anthropic_have_their_display_names() -> None:
    listed = {"data": [{"type": "model", "id": "claude-x", "display_name": "Claude X", "created_at": "2026-01-01"}]}
    claude = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    async with passing(provider=Provider(lambda _: listed), llm=claude) as (served, provider):
        shown = [one.display_name async for one in served.anthropic.models.list()]
        assert shown == ["claude-sonnet-4-5", "Claude X"]
        got = provider.requests[0]
        assert (got["path"], got["headers"]["x-api-key"]) == ("/v1/models?limit=1000", UPSTREAM_KEY)


# -- base URLs -----------------------------------------------------------------


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/", "/v1/v1", "/v1/v1/v1"])
async def test_a_clients_base_url_may_lack_the_version_or_repeat_it(base: str) -> None:
    async with gateway(["One.", "Two.", "Three."]) as served:
        client = AsyncOpenAI(base_url=f"{served.url}{base}", api_key=CLIENT_KEY, max_retries=0)
        anthropic = AsyncAnthropic(base_url=f"{served.url}{base}".rstrip("/"), api_key=CLIENT_KEY, max_retries=0)
        async with client, anthropic:
            chat = await client.chat.completions.create(model="default", messages=[{"role": "user", "content": "Hi."}])
            made = await client.responses.create(model="default", input="Hi.")
            said: Any = await anthropic.messages.create(
                model="default", max_tokens=9, messages=[{"role": "user", "content": "Hi."}]
            )
            assert (chat.choices[0].message.content, made.output_text, said.content[0].text) == (
                "One.",
                "Two.",
                "Three.",
            )
            assert [one.id async for one in client.models.list()] == ["default", "scripted"]
            with pytest.raises(openai.NotFoundError, match="404"):  # from the upstream
                await client.embeddings.create(model="e", input="Hi.")
            assert (await client.responses.retrieve(made.id)).output_text == "Two."


async def test_authentication_sees_the_path_of_the_route() -> None:
    async with gateway(["Yes."]) as served:
        key = bearer(await served.create_key(role="read"))
        for path in ("/chat/completions", "/v1/v1/chat/completions", "/models", "/embeddings", "/v1/v1/sessions"):
            assert (await served.http.post(path, json={})).status_code == 401
        body = {"messages": [{"role": "user", "content": "Hi."}]}
        assert (await served.http.post("/chat/completions", json=body, headers=key)).status_code == 403
        error = (await served.http.post("/messages", json={}, headers={"x-api-key": "x"})).json()
        assert error["type"] == "error"  # Anthropic's form, as at /v1/messages


async def test_no_route_of_holdfast_is_shadowed() -> None:
    async with gateway(()) as served:
        paths = (await served.http.get("/openapi.json")).json()["paths"]
        own = [path for path, methods in paths.items() if "get" in methods and "{" not in path]
        own = [path for path in own if not path.startswith("/v1/")]
        assert {"/", "/healthz", "/metrics", "/sessions"} <= {*own}
        for path in own:
            assert (await served.http.get(path)).status_code != 404
        assert (await served.http.get("/inspect/sessions")).status_code == 200


@pytest.mark.parametrize("end", ["/v1", "/v1/", "/v1/v1", "/v1/v1/", "/v1/chat/completions", "/v1/responses", ""])
async def test_an_upstreams_base_url_may_have_too_much_at_its_end(end: str) -> None:
    async with ScriptedUpstream(["Yes."]) as upstream:
        config = LLMS.format(url=upstream.url.removesuffix("/v1") + end, key="sk-x")
        async with gateway(None, config) as served:
            assert (await served.chat("Hi."))["choices"][0]["message"]["content"] == "Yes."
            assert upstream.requests[0].path == ("/chat/completions" if not end else "/v1/chat/completions")


async def test_the_query_of_a_base_url_is_sent_with_other_paths_too() -> None:
    async with Provider() as provider, gateway(None, LLMS.format(url=f"{provider.url}?v=7", key="sk-x")) as served:
        await served.http.get("/v1/files", params={"limit": 2})
        assert provider.requests[0]["path"] == "/v1/files?v=7&limit=2"


async def test_an_upstreams_base_url_may_lack_the_version() -> None:
    """The first 404 shows it. A model that is missing is reported, and is no reason to call another address from then on."""

    def reply(request: web.Request) -> Any:
        if request.path != "/v1/chat/completions":
            return web.Response(status=404, text="404 page not found")
        if b"missing" in provider.requests[-1]["body"]:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]}

    async with (
        Provider(reply) as provider,
        gateway(None, LLMS.format(url=provider.url.removesuffix("/v1"), key="sk-x")) as served,
    ):
        for model, status in (("default", 200), ("default", 200), ("missing", 404), ("default", 200)):
            assert (await served.chat("Hi.", model=model))["status"] == status
        paths = [one["path"] for one in provider.requests]
        bare, versioned = "/chat/completions", "/v1/chat/completions"
        assert paths == [bare, versioned, versioned, versioned, bare, versioned]


async def test_anthropics_base_url_may_repeat_the_version() -> None:
    async with AnthropicUpstream(["Yes."]) as upstream:
        llm = f"{{provider: anthropic, base_url: '{upstream.url}/v1', api_key: sk-x, model: claude-sonnet-4-5}}"
        async with gateway(None, f"llms: {{default: {llm}}}") as served:
            assert (await served.chat("Hi."))["choices"][0]["message"]["content"] == "Yes."
            assert upstream.requests[0].path == "/v1/messages"
