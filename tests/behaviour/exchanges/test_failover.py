"""Upstreams that fail: what the client gets, what the log keeps, how often each model is asked, and for how long one is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.testing import Reply, ScriptedUpstream, Tokenizer
from tests.behaviour.kit import UPSTREAM_KEY, assistant, system, user
from tests.behaviour.kit.exchanges import Exchange, exchange

CHAT: Final = "/v1/chat/completions"


def failed(status: int, error: Any = "broken", **headers: str) -> Reply:
    return Reply(status=status, error=error, headers={name.replace("_", "-"): text for name, text in headers.items()})


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


CHUNK: Final = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"One"},"finish_reason":%b}]}\n\n'
FAILURES: Final[dict[str, Reply]] = {
    "400": failed(400, error("bad temperature", code="bad_value", param="temperature", type="t")),
    "401": failed(401, error(f"wrong key {UPSTREAM_KEY}")),
    "402": failed(402),
    "403": failed(403),
    "404": failed(404, error("no such model")),
    "408": failed(408),
    "409": failed(409),
    "413": failed(413, {"detail": "too large"}),
    "422": failed(422, [error("odd", status=422)]),
    "425": failed(425),
    "429 now": failed(429, retry_after="2"),
    "429 late": failed(429, retry_after="30.5"),
    "429 ms": failed(429, retry_after_ms="1500"),
    "429 odd": failed(429, retry_after="-1"),
    "429 quota": failed(429, error("You exceeded your quota", code="insufficient_quota")),
    "500": failed(500, error("oops", type="server_error")),
    "500 no": failed(500, x_should_retry="false"),
    "400 yes": failed(400, x_should_retry="true"),
    "503": failed(503),
    "504": failed(504),
    "529": failed(529),
    "301": failed(301, location="http://127.0.0.1:9/"),
    "html": Reply(raw=[b"<html>"], content_type="text/html"),
    "html 500": Reply(raw=[b"<html>"], status=500, content_type="text/html"),
    "empty": Reply(raw=[b""]),
    "no choices": Reply(raw=[b'data: {"id":"x"}\n\n', b"data: [DONE]\n\n"]),
    "not json": Reply(raw=[b"data: {\n\n"]),
    "odd delta": Reply(raw=[b'data: {"choices":[{"index":0,"delta":5}]}\n\n']),
    "error json": Reply(raw=[b'{"error":{"message":"no","code":"invalid_thing"}}'], content_type="application/json"),
    "error first": Reply(error=error("overloaded", code=503), cut_after=0, stream=True),
    "error 429 first": Reply(error=error("slow down", code="429"), cut_after=0, stream=True),
    "error later": Reply(text="One two three", error=error("overloaded", type="invalid_request_error"), cut_after=3, stream=True),
    "cut": Reply(text="One two three", cut_after=3),
    "cut after a role": Reply(text="One two three", cut_after=1),
    "cut calls": Reply(tool_calls=[("look", {"at": "sea"})], cut_after=2),
    "no end": Reply(raw=[CHUNK % b"null"]),
    "no [DONE]": Reply(raw=[CHUNK % b'"stop"']),
    "one piece": Reply(text="One two.", stream=False),
    "garbage": Reply(raw=[CHUNK % b"null", b"data: {\n\n"]),
}  # fmt: skip


def answer(body: dict[str, Any]) -> Reply:
    return FAILURES.get(body["messages"][-1]["content"], Reply(text="Done."))


@exchange(answer, retries=2)
async def test_each_failure_whole_and_streamed(x: Exchange) -> None:
    for name in FAILURES:
        await x.post(CHAT, session_id=name, messages=[user(name)])
        await x.post(CHAT, session_id=f"{name}, streamed", messages=[user(name)], stream=True)
    for name in FAILURES:
        await x.rows(f"/v1/sessions/{name}/messages", "role", "content", "metadata")
    for name in ("400", "cut", "garbage"):
        await x.post(CHAT, session_id=name, messages=[user("Again?")])
        await x.rows(f"/v1/sessions/{name}/messages", "role", "content", "metadata")
    await x.rows("/v1/sessions", "id", "turns", "usage", "version", limit=200)


def say(name: str, *wrong: str) -> Callable[[dict[str, Any]], Reply]:
    """Fail if the last words of a prompt name the model; else tell its name."""

    def reply(body: dict[str, Any]) -> Reply:
        said = str(body["messages"][-1]["content"])
        found = next((part for part in said.split(";") if part.startswith(f"{name}:")), "")
        return FAILURES[found.partition(":")[2]] if found else Reply(text=f"I am {name}.")

    return reply


LLM: Final = {"fallbacks": ["m1", "m2"], "params": {"temperature": 1}}


OTHERS: Final = {
    "m1": (lambda: ScriptedUpstream(say("m1")), {"model": "small", "fallbacks": ["m2"], "max_tokens": 50}),
    "m2": (lambda: ScriptedUpstream(say("m2")), {"model": "local", "inputs": ["text"], "params": {"top_p": 0.5}}),
}


@exchange(say("default"), llm=LLM, models=OTHERS)
async def test_which_model_answers(x: Exchange) -> None:
    for name in (
        "401",
        "402",
        "403",
        "404",
        "408",
        "409",
        "429 now",
        "503",
        "301",
        "html",
        "error first",
        "cut after a role",
        "400",
        "413",
        "422",
        "cut",
    ):
        await x.post(CHAT, session_id=name, messages=[user(f"default:{name}")])
        await x.later(hours=2)
    for said in ("default:503;m1:400", "default:503;m1:503;m2:429 now", "default:429 late;m1:429 now;m2:400", "m1:503"):
        for model in ("default", "m1"):
            await x.post(CHAT, session_id="t", messages=[user(said)], stream=True, model=model)
            await x.later(hours=2)
        await x.rows("/v1/sessions/t/messages", "role", "content")
    await x.rows("/v1/sessions/t/calls", "model", "turn_id", "prompt_tokens")
    metrics = (await x.served.http.get("/metrics")).text.splitlines()
    x.note("metrics", [line for line in metrics if "_upstream" in line and "_created" not in line and line[0] != "#"])


@exchange(say("default"), llm=LLM, models=OTHERS)
async def test_how_long_a_model_is_left_alone(x: Exchange) -> None:
    async def ask(said: str) -> None:
        found = await x.served.chat(said, "s")
        asked = [len(model.requests) for model in x.served.models.values()]
        x.note(said, [found["status"], (found.get("session") or {}).get("upstream"), asked])

    for failure, seconds in (
        ("503", (5, 10, 20, 40, 80, 160, 300, 300)),
        ("429 late", (30.5, 30.5)),
        ("500 no", (5, 10)),
    ):
        for pause in seconds:
            await ask(f"default:{failure}")
            x.served.clock.now += int(pause * 1000) - 1
            await ask("Too early.")
            x.served.clock.now += 1
        await ask("Answer.")
    for said in ("default:503;m1:503", "default:503;m1:503;m2:503", "Hi.", "m1:503", "default:400"):
        await ask(said)


LONG: Final = [part for at in range(12) for part in (user(f"{at} " + "word " * 60), assistant(f"Yes {at}."))]


def windows(refusal: str, window: int, **more: Any) -> ScriptedUpstream:
    return ScriptedUpstream(lambda body: "Done.", tokenizer=Tokenizer(window=window, refusal=refusal, **more))


@exchange(
    upstream=lambda: windows("openai", 700),
    llm={"fallbacks": ["m1", "m2"], "context_window": 4000, "max_tokens": 100},
    models={
        "m1": (lambda: windows("anthropic", 300, in_stream=True), {"context_window": 2000, "max_tokens": 100}),
        "m2": (lambda: windows("vllm", 10_000, ratio=1.5), {"context_window": 9000, "max_tokens": 100}),
    },
)
async def test_prompts_that_are_too_long(x: Exchange) -> None:
    for name, model in (("s", "default"), ("t", "m1"), ("u", "m2")):
        await x.served.rest.given(name, *LONG)
        for said in ("So?", "word " * 900, "Well?"):
            found = await x.served.chat(said, name, model=model)
            session = found.get("session") or {}
            x.note(
                f"{name} {said[:9]}",
                [
                    found["status"],
                    found.get("error"),
                    session.get("working_set"),
                    session.get("upstream"),
                    session.get("warnings"),
                ],
            )
            sent = {
                key: [len(one.body["messages"]) for one in server.requests] for key, server in x.served.models.items()
            }
            x.note("messages of each prompt", sent)
        await x.rows(f"/v1/sessions/{name}/calls", "model", "turn_id", "prompt_tokens", "working_set")


def name_a_message(body: dict[str, Any]) -> Reply:
    messages = body["messages"]
    for at, one in enumerate(messages):
        if "odd" in str(one["content"]):
            return failed(
                400, error(f"Invalid value: messages[{at}].content", code="bad_image", param=f"messages[{at}].content")
            )
    return Reply(text=f"{len(messages)} messages.")


@exchange(name_a_message)
async def test_a_message_that_a_provider_refuses_is_left_out_until_it_is_sent_again(x: Exchange) -> None:
    await x.served.rest.given(
        "s",
        user("One."),
        assistant("Yes."),
        user("An odd one."),
        assistant("Also odd."),
        user("Two."),
        assistant("No."),
    )
    await x.post(CHAT, session_id="s", messages=[user("Three.")])
    await x.post(CHAT, session_id="s", messages=[user("Four.")])
    await x.post(CHAT, session_id="s", messages=[user("That is odd.")])
    await x.rows("/v1/sessions/s/messages", "seq", "role", "content", "refused_by")
    await x.patch("/v1/sessions/s/messages/2", refused_by=[])
    await x.post(CHAT, session_id="s", messages=[user("Five.")])


@exchange(
    [failed(503), "Yes.", failed(503)],
    llm={"fallbacks": ["tiny", "m2"]},
    models={
        "tiny": (lambda: ScriptedUpstream(["Never."]), {"context_window": 200, "max_tokens": 50}),
        "m2": (lambda: ScriptedUpstream(["I can.", failed(503, retry_after="9")]), {}),
    },
)
async def test_a_fallback_that_has_no_room_is_passed_over(x: Exchange) -> None:
    for said in ("One.", "Two.", "Three."):
        await x.post(CHAT, session_id="s", messages=[system("A long rule. " * 90), user(said)])
        x.served.clock.now += 60_000
    await x.rows("/v1/sessions/s/calls", "model", "turn_id")
