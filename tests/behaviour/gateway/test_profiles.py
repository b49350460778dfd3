"""What is sent to upstreams that are not OpenAI: the same words, in the form that each of them accepts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import assistant, calls, gateway, result, user

CALL_ID = "call_PTLP8xhu3uwZk4l3nlnrrJha"
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
    {"role": "developer", "content": "Metric units."},
    user("Where is order 7?"),
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I look it up.",
        "annotations": [],
        "tool_calls": [{"id": CALL_ID, "type": "function", "function": {"name": "find", "arguments": '{"order": '}}],
    },
    {"role": "tool", "tool_call_id": CALL_ID, "content": "  "},
    user("Hurry.", name="ada"),
    {"role": "system", "content": "Ada is the owner."},
    user("Please.", name="ben"),
]
"""Everything that some upstream refuses, although OpenAI's own API accepts it."""
STRICT = ("mistral", "groq", "bedrock")
AS_GENERIC = (
    "generic",
    "together",
    "ollama",
    "vllm",
    "llama.cpp",
    "gemini",
    "mistral",
    "deepseek",
    "groq",
    "litellm",
    "bedrock",
)


async def send(profile: str | None, messages: list[dict[str, Any]] = HISTORY, **body: Any) -> Mapping[str, Any]:
    """Return the body that the model gets."""
    async with gateway(["In Graz."], llm={"profile": profile}) as served:
        assert (await served.chat(messages, None, **body))["status"] == 200
        sent: Mapping[str, Any] = served.sent
        return sent


def roles(sent: Mapping[str, Any]) -> list[str]:
    return [message["role"] for message in sent["messages"]]


@pytest.mark.parametrize("profile", AS_GENERIC)
async def test_roles_are_those_of_a_chat_template(profile: str) -> None:
    got = roles(await send(profile))
    assert got == ["system", "user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize("profile", [*AS_GENERIC, "openai", "openrouter"])
async def test_no_word_is_lost_and_arguments_are_an_object(profile: str) -> None:
    sent = await send(profile)
    text = " ".join(str(message.get("content")) for message in sent["messages"])
    assert all(
        word in text for word in ("Be brief.", "Metric units.", "order 7", "Hurry.", "Ada is the owner.", "Please.")
    )
    (call,) = next(message["tool_calls"] for message in sent["messages"] if message.get("tool_calls"))
    assert call["function"]["arguments"] == '{"arguments":"{\\"order\\": "}'


@pytest.mark.parametrize("profile", AS_GENERIC)
async def test_speakers_stay_with_their_words(profile: str) -> None:
    (last,) = [m["content"] for m in (await send(profile))["messages"] if m["role"] == "user"][-1:]
    assert last.startswith("ada: Hurry.\n\n")
    assert last.endswith("ben: Please.")


@pytest.mark.parametrize("profile", AS_GENERIC)
async def test_nothing_is_null_or_blank(profile: str) -> None:
    for message in (await send(profile))["messages"]:
        null = message["content"] is None and profile in ("deepseek", "groq", "litellm")
        assert null or message["content"].strip() or message.get("tool_calls")
        if message["role"] == "tool":
            assert message["content"] == "(no output)"


@pytest.mark.parametrize(
    ("profile", "form"),
    [("mistral", "[a-zA-Z0-9]{9}"), ("bedrock", CALL_ID), ("openai", CALL_ID), ("generic", "[a-f0-9]{9}")],
)
async def test_a_call_and_its_result_keep_the_same_id(profile: str, form: str) -> None:
    messages = (await send(profile))["messages"]
    (call,) = next(message["tool_calls"] for message in messages if message.get("tool_calls"))
    (answer,) = [message for message in messages if message["role"] == "tool"]
    assert call["id"] == answer["tool_call_id"]
    assert re.fullmatch(form, call["id"])


@pytest.mark.parametrize("profile", ["openai", "bedrock"])
async def test_a_long_id_is_mapped_to_the_same_short_one_every_time(profile: str) -> None:
    long = "x" * 90
    history = [user("a"), calls((long, "find", {})), result(long, "b"), user("c")]
    first, second = [await send(profile, history), await send(profile, [*history[:-1], user("d")])]
    assert first["messages"][:3] == second["messages"][:3]
    assert len(first["messages"][1]["tool_calls"][0]["id"]) <= 40


@pytest.mark.parametrize(
    ("profile", "kept"),
    [
        *((name, set[str]()) for name in STRICT),
        *((name, {"reasoning_content"}) for name in ("generic", "vllm", "ollama", "deepseek", "litellm")),
        ("openai", set[str]()),
        ("openrouter", {"reasoning_content", "annotations"}),
    ],
)
async def test_fields_of_replies_go_where_they_are_accepted(profile: str, kept: set[str]) -> None:
    (reply,) = [message for message in (await send(profile))["messages"] if message.get("tool_calls")]
    assert reply.keys() - {"role", "content", "tool_calls"} == kept


@pytest.mark.parametrize("profile", ["bedrock", "litellm"])
async def test_an_id_that_two_rounds_have_is_sent_once(profile: str) -> None:
    one = [calls(("same", "find", {})), result("same", "b")]
    sent = (await send(profile, [user("a"), *one, *one, user("c")]))["messages"]
    made = [message["tool_calls"][0]["id"] for message in sent if message.get("tool_calls")]
    assert made == ["same", "same-2"]
    assert [message["tool_call_id"] for message in sent if message["role"] == "tool"] == made


async def test_reasoning_that_is_no_text_is_not_sent() -> None:
    reply = {**calls(("c", "find", {})), "reasoning_content": {"a": 1}}
    sent = await send("deepseek", [user("a"), reply, result("c", "b")])
    assert sent["messages"][1]["reasoning_content"] == ""


async def test_fields_of_a_client_are_left_out_only_where_they_are_refused() -> None:
    history = [user("a", priority=1)]
    assert "priority" in (await send("generic", history))["messages"][0]
    assert "priority" not in (await send("groq", history))["messages"][0]


async def test_deepseek_gets_reasoning_beside_the_calls_of_another_model() -> None:
    history = [user("a"), calls(("c1", "find", {})), result("c1", "b"), user("c")]
    assert (await send("deepseek", history))["messages"][1]["reasoning_content"] == ""


async def test_gemini_gets_a_signature_for_the_first_call_of_the_current_round() -> None:
    history = [user("a"), calls(("c1", "find", {})), result("c1", "b")]
    (call,) = (await send("gemini", history))["messages"][1]["tool_calls"]
    assert call["extra_content"]["google"]["thought_signature"]
    (old,) = (await send("gemini", [*history, user("c")]))["messages"][1]["tool_calls"]
    assert "extra_content" not in old


@pytest.mark.parametrize("profile", ["litellm", "bedrock"])
async def test_calls_in_the_history_declare_their_tools(profile: str) -> None:
    (tool,) = (await send(profile))["tools"]
    assert tool["function"]["name"] == "find"


@pytest.mark.parametrize("profile", ["mistral", "bedrock"])
async def test_a_prompt_ends_with_the_user(profile: str) -> None:
    assert roles(await send(profile, [user("a"), {"role": "assistant", "content": "b"}]))[-1] == "user"


REFUSALS = [
    ({"message": "property 'reasoning_content' is unsupported"}, "reasoning_content", False),
    ({"detail": [{"loc": ["body", "messages", 1, "assistant", "reasoning_content"]}]}, "reasoning_content", False),
    (
        {"message": "Missing `reasoning_content` field in the assistant message at message index 1."},
        "reasoning_content",
        True,
    ),
    ({"message": "Function call is missing a thought_signature in functionCall parts."}, "thought_signature", True),
    ({"message": "Tool call id was call_c1234 but must be a-z, A-Z, 0-9, with a length of 9."}, '"call_c1234"', False),
]


@pytest.mark.parametrize(("error", "named", "wanted"), REFUSALS)
async def test_a_refusal_that_names_a_rule_is_learned_and_the_request_is_sent_again(
    error: dict[str, Any], named: str, wanted: bool
) -> None:
    history = [
        user("a"),
        {**calls(("call_c1234", "find", {})), **({} if wanted else {"reasoning_content": "Hm."})},
        result("call_c1234", "b"),
    ]
    replies = [Reply(status=422, error=error), "one", "two"]
    async with gateway(replies, llm={"profile": "litellm"}) as served:
        for answer in ("one", "two"):
            got = await served.chat(history, None)
            assert got["choices"][0]["message"]["content"] == answer
            assert (named in str(served.sent["messages"]).replace("'", '"')) is wanted
        assert len(served.upstream.requests) == 3


TEMPLATES = [
    (
        "System role not supported",
        [
            ("user", "Be brief.\n\na"),
            ("assistant", "I look."),
            ("tool", "x"),
            ("tool", "y"),
            ("assistant", "Done."),
            ("user", "b"),
        ],
    ),
    (
        "This model only supports single tool-calls at once!",
        [
            ("system", "Be brief."),
            ("user", "a"),
            ("assistant", "I look."),
            ("tool", "x"),
            ("assistant", ""),
            ("tool", "y"),
            ("assistant", "Done."),
            ("user", "b"),
        ],
    ),
    (
        "Conversation roles must alternate user/assistant/user/assistant/...",
        [
            ("system", "Be brief."),
            ("user", "a"),
            ("assistant", 'I look.\n\n[called find with {"a": 1}]\n\n[called find with {"a": 2}]'),
            ("user", "[result] x\n\n[result] y"),
            ("assistant", "Done."),
            ("user", "b"),
        ],
    ),
]


@pytest.mark.parametrize(("words", "sent"), TEMPLATES)
async def test_the_error_of_a_chat_template_is_learned(words: str, sent: list[tuple[str, str]]) -> None:
    history = [
        {"role": "system", "content": "Be brief."},
        user("a"),
        {**calls(("call_1", "find", {"a": 1}), ("call_2", "find", {"a": 2})), "content": "I look."},
        *(result("call_1", "x"), result("call_2", "y")),
        assistant("Done."),
        user("b"),
    ]
    refusal = Reply(status=400, error={"message": f"{words} None"})
    async with gateway([refusal, "one", "two"], llm={"profile": "vllm"}) as served:
        for _ in range(2):
            assert (await served.chat(history, None))["status"] == 200
            assert [(message["role"], message["content"]) for message in served.sent["messages"]] == sent
            open_calls: list[str] = []
            for message in served.sent["messages"]:
                open_calls += [call["id"] for call in message.get("tool_calls", ())]
                if message["role"] == "tool":
                    assert open_calls.pop(0) == message["tool_call_id"]
                    assert re.fullmatch("[a-zA-Z0-9]{9}", message["tool_call_id"])
        assert len(served.upstream.requests) == 3


@pytest.mark.parametrize(("model", "first"), [("google/gemma-2-9b-it", "user"), ("gemma-4-31b-it", "system")])
async def test_models_without_a_system_prompt_are_known_by_name(model: str, first: str) -> None:
    async with gateway(["In Graz."], llm={"profile": "vllm", "model": model}) as served:
        await served.chat([{"role": "system", "content": "Be brief."}, user("a")], None, model=model)
        assert roles(served.sent)[0] == first
        assert "Be brief." in str(served.sent["messages"][0]["content"])


async def test_a_refusal_that_names_nothing_that_was_sent_is_the_clients() -> None:
    async with gateway(
        [Reply(status=400, error={"message": "reasoning_content and name are wrong"})], llm={"profile": "generic"}
    ) as served:
        assert (await served.chat("a"))["status"] == 400
        assert len(served.upstream.requests) == 1


async def test_a_refusal_that_nothing_helps_against_is_not_answered_for_ever() -> None:
    history = [user("a"), calls(("c1", "find", {})), result("c1", "b")]
    refusal = Reply(status=400, error={"message": "reasoning_content is wrong"})
    async with gateway([refusal] * 9, llm={"profile": "generic"}) as served:
        assert (await served.chat(history, None))["status"] == 400
        assert len(served.upstream.requests) == 3


async def test_a_profile_is_for_chat_completions() -> None:
    with pytest.raises(Exception, match=r"profile.*provider: openai"):
        async with gateway(["a"], llm={"profile": "groq", "provider": "anthropic"}):
            pass
