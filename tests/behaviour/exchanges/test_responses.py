"""Responses: whole and streamed, continued, branched, read again, cancelled, deleted and compacted."""

from __future__ import annotations

from typing import Any, Final

from holdfast.testing import Reply
from tests.behaviour.kit.exchanges import Exchange, exchange

PATH: Final = "/v1/responses"
LOOK: Final = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": True}
RUN: Final = {"type": "custom", "name": "run", "description": "Runs code."}
SEA: Final = {"type": "namespace", "name": "sea", "description": "The sea.", "tools": [LOOK]}
SCHEMA: Final = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}
KINDS: Final = [
    Reply(
        text="Two words",
        usage={"prompt_tokens": 20, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}},
    ),
    Reply(text="Cut", finish_reason="length"),
    Reply(text="Hm", finish_reason="content_filter"),
    Reply(message={"refusal": "I cannot."}),
    Reply(text="Deep.", message={"reasoning_content": "Let me think."}),
    Reply(text="Both.", tool_calls=[("look", {"at": "sea"}), ("run", {"input": "print(1)"})]),
    Reply(text="One two three", cut_after=3),
    Reply(status=429, error="slow", headers={"retry-after": "2"}),
]


@exchange([*KINDS, *KINDS, *["Well."] * 9])
async def test_each_kind_of_reply_whole_and_streamed(x: Exchange) -> None:
    made = []
    for stream in (False, True):
        for at in range(len(KINDS)):
            found = await x.post(PATH, session_id=f"{at}{stream}", input="Hi.", stream=stream, tools=[LOOK, RUN])
            made += [found["id"]] if isinstance(found, dict) and "id" in found else []
    for one in made:
        await x.rows(f"{PATH}/{one}/input_items", "content")
        await x.get(f"{PATH}/{one}")
    await x.get(f"{PATH}/{made[0]}", stream=True)
    await x.get(f"{PATH}/{made[0]}", stream=True, starting_after=4)
    first = await x.post(PATH, input="Mine.", user_id="ada", session_id="own")
    for more in ({}, {"user_id": "bob"}, {"session_mode": "auto"}, {"session_mode": "delta", "user_id": "ada"}, {"session_mode": "full"}, {"session_id": "0False"}, {"session_id": "own"}):  # fmt: skip
        await x.post(PATH, input="More.", previous_response_id=first["id"], **more)


@exchange(["One."] * 9, "gateway: {allowed_strategies: [digest, none]}")
async def test_counted_tokens(x: Exchange) -> None:
    first = await x.post(PATH, input="Hi. " * 300, session_id="s", instructions="Be kind.")
    await x.post(PATH, input="And now?", previous_response_id=first["id"])
    own = {"session_id": "s", "session_mode": "delta"}
    for fields in (own, {**own, "strategy": "digest", "budget": 200}, {**own, "strategy": "token_window"}, {"previous_response_id": first["id"]}, {"tools": [LOOK]}, {"instructions": "Be brief."}, {"strategy": "salience"}, {"temperature": "x"}, {"metadata": {"a": "b"}, "top_p": 0.5}, {"user_id": "ada", **own}, {"input": None}, {"previous_response_id": "resp_x"}, {"previous_response_id": first["id"], "user_id": "eve"}):  # fmt: skip
        await x.post(f"{PATH}/input_tokens", **{"input": "How many?", **fields})
    for fields in ({}, {"system": "Be kind. " * 9}, {"system": [{"type": "text", "text": "Be kind."}]}, {"tools": [{"name": "look", "input_schema": {"type": "object"}}]}, {"model": "none"}, {"messages": []}):  # fmt: skip
        await x.post(
            "/v1/messages/count_tokens",
            **{"model": "default", "messages": [{"role": "user", "content": "Hi."}], **fields},
        )


@exchange(["Done."] * 20)
async def test_fields_of_requests(x: Exchange) -> None:
    full: dict[str, Any] = {
        "model": "default",
        "instructions": "Be kind.",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 9,
        "max_tool_calls": 2,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": "auto"},
        "service_tier": "flex",
        "text": {"format": SCHEMA, "verbosity": "low"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 3,
        "truncation": "auto",
        "user": "ada",
        "prompt_cache_key": "k" * 64,
        "stream_options": {"include_obfuscation": False},
    }
    await x.post(PATH, input="Hi.", **full)
    choices: list[Any] = [
        "auto",
        "required",
        {"type": "function", "name": "look"},
        {"type": "custom", "name": "run"},
        {"type": "function", "name": "look", "namespace": "sea"},
    ]
    choices += [
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
        {"type": "namespace", "name": "sea"},
        {"type": "function", "name": "swim"},
        {"type": "web_search"},
    ]
    for choice in choices:
        await x.post(PATH, input="Hi.", tools=[LOOK, RUN, SEA, {"type": "web_search"}], tool_choice=choice, store=False)
    wrong: list[dict[str, Any]] = [
        {"input": None},
        {"input": []},
        {"input": 5},
        {"input": ""},
        {"prompt": {"id": "p"}},
        {"moderation": {"a": 1}},
        {"max_output_tokens": 0},
        {"truncation": "odd"},
        {"truncation": "disabled", "strategy": "none"},
        {"text": {"format": {"type": "odd"}}},
        {"reasoning": 5},
        {"include": "x"},
        {"background": True, "store": False},
        {"store": "yes"},
        {"instructions": [{"role": "user", "content": "Hi."}]},
        {"prompt_cache_key": "k" * 65},
        {"prompt_cache_options": {"comparison_response_id": "r"}},
        {"previous_response_id": "resp_no"},
        {"previous_response_id": 5},
        {"contex_management": []},
        {"context_management": [{"type": "compaction", "compact_threshold": 0}]},
        {"context_management": [{"type": "odd"}]},
        {"metadata": {"a": 5}},
        {"session_queue": "odd"},
        {"input": [{"type": "item_reference", "id": "msg_no"}]},
        {"input": [{"type": "compaction_trigger"}, {"role": "user", "content": "Hi."}]},
    ]
    for fields in wrong:
        await x.post(PATH, **{"input": "Hi.", **fields})
    await x.rows("/v1/sessions", "id", "user_id", "turns", "system_messages", limit=50)


@exchange([f"R{at}." for at in range(20)])
async def test_responses_are_continued_branched_and_deleted(x: Exchange) -> None:
    async def say(said: Any, **fields: Any) -> str:
        found = await x.post(PATH, input=said, **fields)
        return str(found.get("id"))

    one = await say("One.", user="ada", instructions="Be brief.")
    two = await say("Two.", user="ada", previous_response_id=one)
    three = await say("Three.", user="ada", previous_response_id=two, instructions="Be long.")
    branch = await say("Two!", user="ada", previous_response_id=one)
    await say("After the branch.", user="ada", previous_response_id=branch)
    await say("Whose?", user="bob", previous_response_id=one)
    await say("In which mode?", user="ada", previous_response_id=three, session_mode="transcript")
    await say("In which session?", user="ada", previous_response_id=three, session_id="other")
    whole = [
        {"role": "user", "content": "Three."},
        {"role": "assistant", "content": "R2."},
        {"role": "user", "content": "Four."},
    ]
    four = await say(whole, user="ada", previous_response_id=three)
    items = [item["id"] for item in await x.rows(f"{PATH}/{four}/input_items", "id", "content", user_id="ada")]
    await say(
        [{"type": "item_reference", "id": items[0]}, {"role": "user", "content": "Five."}],
        user="ada",
        previous_response_id=four,
    )
    await say([{"type": "item_reference", "id": items[0]}, {"role": "user", "content": "Elsewhere."}], user="ada")
    gone = await say("Not kept.", user="ada", store=False)
    await say("After what is not kept.", user="ada", previous_response_id=gone)
    for made, user in ((one, "ada"), (one, "bob"), (one, None), (two.replace("_4z", "_5z"), "ada"), (gone, "ada")):
        await x.get(f"{PATH}/{made}", user_id=user)
    await x.send("POST", f"{PATH}/{two}/cancel", query={"user_id": "ada"})
    for user in ("bob", "ada", "ada"):
        await x.delete(f"{PATH}/{two}", user_id=user)
    await say("After the deleted.", user="ada", previous_response_id=two)
    await say("After the one behind it.", user="ada", previous_response_id=three)
    for row in await x.rows("/v1/sessions", "id", "user_id", "turns", "version", "message_count", "metadata", limit=50):
        await x.rows(
            f"/v1/sessions/{row['id']}/messages", "seq", "role", "content", "retired_by", user_id=row["user_id"]
        )


@exchange([f"R{at}." for at in range(20)])
async def test_compacted_conversations(x: Exchange) -> None:
    said = [
        {"role": "user", "content": "One. " + "word " * 50},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Two."},
    ]
    done = await x.post(f"{PATH}/compact", model="default", input=said, instructions="Be brief.", user="ada")
    for more in ("Three.", "Four."):
        await x.post(PATH, input=[*done["output"], {"role": "user", "content": more}], user="ada")
    await x.post(PATH, input=[*done["output"], {"role": "user", "content": "Whose?"}], user="bob")
    last = await x.post(PATH, input=[*said, {"type": "compaction_trigger"}], user="ada")
    await x.post(PATH, input=[*last["output"], {"role": "user", "content": "Five."}], user="ada")
    low = await x.post(
        PATH, input=said, user="ada", context_management=[{"type": "compaction", "compact_threshold": 20}]
    )
    await x.post(f"{PATH}/compact", previous_response_id=low["id"], user="ada")
    await x.post(f"{PATH}/compact", input=[], user="ada")
    for row in await x.rows("/v1/sessions", "id", "user_id", "turns", "version", limit=50):
        await x.rows(f"/v1/sessions/{row['id']}/compactions", "id", "text", "first", "last", user_id=row["user_id"])
