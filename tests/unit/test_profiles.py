"""Any history that a client may have, as each upstream gets it, against rules that were written from the providers' own pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.context.prefix_diff import PrefixTracker
from holdfast.domain.profiles import PROFILES, Profile, ProfileName, find_profile
from holdfast.models.base import ModelRequest
from holdfast.models.codecs.chat import decode_request, encode_request
from tests.providers.providers import find_fault

Json = dict[str, Any]
MODELS = {"gemini": "gemini-3-flash", "deepseek": "deepseek-reasoner", "openai": "gpt-4o", "azure": "gpt-4o"}
TOOLS = ("find", "sh_1")

words = st.sampled_from(["Where is order 7?", "Hi", "ok\n", "é𝄞", "a" * 50])
texts = st.one_of(words, st.sampled_from(["", "  "]))
contents = st.one_of(texts, st.lists(texts.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=3))
arguments = st.sampled_from(["{}", '{"a": 1}', '{"a": ', "", "null", "[1]", '"x"'])
ids = st.sampled_from(["c", "call_PTLP8xhu3uwZk4l3nlnrrJha", "toolu_01A", "x" * 70, "a b:c", "é"])
reply_fields = st.dictionaries(
    st.sampled_from(["reasoning_content", "reasoning", "refusal", "annotations", "audio", "images"]),
    st.sampled_from(["Hm.", None]),
    max_size=2,
)
sealed = [{"type": "reasoning.encrypted", "data": "SECRET", "format": "openai-responses-v1"}]


@st.composite
def rounds(draw: st.DrawFn) -> list[Json]:
    """A reply with calls, and a result for each."""
    number = draw(st.integers(1, 3))
    prefix = draw(ids)
    calls = [
        {
            "id": f"{prefix}{at}",
            "type": "function",
            "function": {"name": draw(st.sampled_from(TOOLS)), "arguments": draw(arguments)},
            **draw(st.sampled_from([{}, {"index": 0}, {"extra_content": {"google": {"thought_signature": "YWJj"}}}])),
        }
        for at in range(number)
    ]
    reply = {"role": "assistant", "tool_calls": calls, **draw(reply_fields)}
    reply |= draw(st.sampled_from([{}, {"content": None}, {"content": ""}, {"content": "Let me see."}]))
    return [reply, *({"role": "tool", "tool_call_id": call["id"], "content": draw(contents)} for call in calls)]


@st.composite
def histories(draw: st.DrawFn) -> list[Json]:
    """Messages of all roles in any order. Each id of a call occurs once."""
    said = st.one_of(
        st.builds(
            lambda role, content: [{"role": role, "content": content}],
            st.sampled_from(["system", "developer"]),
            contents,
        ),
        st.builds(lambda content: [{"role": "user", "content": content}], contents),
        st.builds(
            lambda name, content: [{"role": "user", "name": name, "content": content}],
            st.sampled_from(["ada", "Ada L."]),
            contents,
        ),
        st.builds(lambda content, more: [{"role": "assistant", "content": content, **more}], words, reply_fields),
        st.builds(lambda content: [{"role": "assistant", "content": content, "reasoning_details": sealed}], words),
        rounds(),
    )
    messages = [message for group in draw(st.lists(said, min_size=1, max_size=8)) for message in group]
    found = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    assume(len(found) == len(set(found)) and any(message["role"] == "user" for message in messages))
    assume(messages[-1]["role"] in ("user", "tool", "assistant"))
    return messages


def encode(profile: Profile, messages: list[Json], *, tools: bool) -> Json:
    declared = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
        for name in TOOLS
    ]
    body = {"model": MODELS.get(profile.name, "m"), "messages": messages, **({"tools": declared} if tools else {})}
    return encode_request(decode_request(body), profile)


def list_words(messages: list[Json]) -> list[str]:
    """Return the words of all texts in order."""
    parts = [part for message in messages for part in _list_parts(message.get("content"))]
    return " ".join(parts).split()


def _list_parts(content: Any) -> list[str]:
    return [content or ""] if isinstance(content, str | None) else [part["text"] for part in content]


NAMES = get_args(ProfileName)
every_profile = pytest.mark.parametrize("profile", [PROFILES[name] for name in NAMES], ids=NAMES)


@every_profile
@given(messages=histories(), tools=st.booleans())
def test_no_upstream_refuses_a_history(profile: Profile, messages: list[Json], tools: bool) -> None:
    if profile.name == "generic":  # the strictest table refuses reasoning, which most servers at unknown addresses take
        messages = [{key: one[key] for key in one if key not in profile.fields} for one in messages]
    before = msgspec.json.encode(messages)
    sent = encode(profile, messages, tools=tools)
    assert find_fault(profile.name, sent) is None
    assert msgspec.json.encode(messages) == before


@every_profile
@given(messages=histories())
def test_no_word_is_lost_and_no_secret_leaks(profile: Profile, messages: list[Json]) -> None:
    sent = encode(profile, messages, tools=True)["messages"]
    rest = iter(list_words(sent))
    assert all(word in rest for word in list_words(messages))
    assert "SECRET" not in json.dumps(sent)


@every_profile
@given(messages=histories())
def test_a_longer_conversation_begins_like_the_shorter_one(profile: Profile, messages: list[Json]) -> None:
    """A provider's cache holds: only the last message may grow, and signatures are those of the current round."""
    cut = next((at for at in range(len(messages) - 1, 0, -1) if messages[at]["role"] == "user"), 0)
    assume(cut)
    short, long = (_strip(encode(profile, part, tools=True)) for part in (messages[:cut], messages))
    assert short[:-1] == long[: len(short) - 1]


@every_profile
@given(messages=histories(), cuts=st.lists(st.integers(1, 40), max_size=3), stays=st.integers(0, 40), data=st.data())
def test_a_prompt_that_grows_is_sent_like_a_whole_one(
    profile: Profile, messages: list[Json], cuts: list[int], stays: int, data: st.DataObject
) -> None:
    """What was encoded for an earlier prompt is used again only if it would be the same now."""
    tracker, tools = PrefixTracker(), list[Json]()
    given, changed = decode_request({"messages": messages}).messages, data.draw(st.integers(0, len(messages) - 1))
    prompts = [given[:cut] for cut in sorted(cuts)] + [given, (*given[:changed], *given[changed + 1 :]), given]
    for prompt in map(tuple, prompts):
        tracker.advance(prompt, min(stays, len(prompt)))
        tools = data.draw(st.sampled_from([tools, [], [{"type": "function", "function": {"name": "find"}}]]))
        request = ModelRequest(prompt, {"model": MODELS.get(profile.name, "m"), "tools": tools})
        whole = encode_request(request, profile)
        assert msgspec.json.decode(msgspec.json.encode(encode_request(request, profile, tracker))) == whole


def _strip(sent: Mapping[str, Any]) -> list[str]:
    shown = []
    for message in sent["messages"]:
        calls = [{**call, "extra_content": None} for call in message.get("tool_calls") or ()]
        shown.append(json.dumps({**message, "tool_calls": calls}))
    return shown


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://mine.openai.azure.com/openai/v1?api-version=1", "azure"),
        ("https://api.mistral.ai/v1", "mistral"),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1", "bedrock"),
        ("https://my-vllm.eu-west-1.elb.amazonaws.com/v1", "generic"),
        ("https://api.mistral.ai.example.org/v1", "generic"),
        ("http://127.0.0.1:11434/v1", "ollama"),
        ("http://127.0.0.1:8000/v1", "generic"),
    ],
)
def test_a_known_address_has_its_profile(url: str, name: str) -> None:
    assert find_profile(url).name == name
