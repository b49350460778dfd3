"""Secrets in messages: which texts are scanned, what is rejected, and what a store writes."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.domain.messages import Message, Part, ToolCall, encode_canonical, encode_payload
from holdfast.errors import InvalidRequest, SecretBlocked
from holdfast.secrets import CREDENTIALS, Guard, make_redactor
from tests.amounts import examples
from tests.unit.test_secrets import BUILT_IN, draw_planted

# -- messages ----------------------------------------------------------------------------

KEY = "sk-ant-" + "a1" * 30
GONE = "[REDACTED:anthropic_key]"
EVERYWHERE = Message(
    role="assistant",
    content=(
        Part("text", f"a {KEY}", {"cache_control": {"note": KEY}}),
        Part("image_url", None, {"image_url": {"url": f"https://x.example/?k={KEY}", "detail": "low"}}),
        Part(KEY, None, {}),
    ),
    tool_calls=(ToolCall("call_1", KEY, json.dumps({"a": KEY, KEY: 1}), "function", {"x": KEY}, {"y": [KEY]}),),
    name=KEY,
    extra={"reasoning_content": f"{KEY} it was", KEY: {"deep": [KEY]}},
)


def test_every_text_of_a_message_is_scanned() -> None:
    guard = Guard(BUILT_IN)
    sweep = guard.sweep()
    told = sweep.clean_message(EVERYWHERE, "messages[3]")
    assert KEY not in repr(told)
    assert repr(told) == repr(EVERYWHERE).replace(KEY, GONE)
    places = {finding.place for finding in sweep.findings}
    assert places == {
        "messages[3]",
        "messages[3].name",
        "messages[3].content[0]",
        "messages[3].content[0].text",
        "messages[3].content[1]",
        "messages[3].content[2].type",
        "messages[3].tool_calls[0]",
        "messages[3].tool_calls[0].name",
        "messages[3].tool_calls[0].arguments",
    }
    assert guard.sweep().clean_message(told, "m") is told


def test_ids_and_media_are_not_scanned() -> None:
    picture = "data:image/png;base64," + "AKIA" + "A" * 16 + "A" * 300
    sound = "AKIA" + "A" * 400
    message = Message(
        role="user",
        content=(
            Part("image_url", None, {"image_url": {"url": picture}}),
            Part("input_audio", None, {"input_audio": {"data": sound, "format": "mp3"}}),
            Part("text", picture),
        ),
    )
    answer = Message(role="tool", content="fine", tool_call_id=KEY)
    for one in (message, answer):
        assert Guard(BUILT_IN).sweep().clean_message(one, "m") is one


def test_a_secret_split_over_parts_is_not_detected() -> None:
    message = Message(role="user", content=(Part("text", KEY[:15]), Part("text", KEY[15:])))
    assert Guard(BUILT_IN).mask_messages([message]) == (message,)


def test_block_rejects_requests_and_redacts_replies_and_results() -> None:
    guard = Guard(watch=make_redactor(everything=CREDENTIALS), action="block")
    for role in ("user", "system", "developer"):
        with pytest.raises(SecretBlocked) as caught:
            guard.mask_messages([Message(role="user", content="hi"), Message(role=role, content=f"it is {KEY}")])
        assert caught.value.found == [("anthropic_key", "messages[1].content")]
        assert caught.value.param == "messages[1].content"
        assert KEY not in str(caught.value)
        assert "a1a1" not in repr(caught.value)
    said = Message(role="assistant", content=f"it is {KEY}")
    result = Message(role="tool", content=KEY, tool_call_id="c")
    assert guard.mask_messages([said, result]) == (
        replace(said, content=f"it is {GONE}"),
        replace(result, content=GONE),
    )
    assert guard.counts == {("anthropic_key", "block"): 3}


def test_redaction_runs_before_the_guard() -> None:
    guard = Guard(make_redactor(rules=["anthropic_key"]), make_redactor(), "block")
    assert guard.mask_messages([Message(role="user", content=KEY)])[0].content == GONE
    with pytest.raises(SecretBlocked, match="rule home_path"):
        guard.mask_messages([Message(role="user", content=f"{KEY} /home/ada")])


def test_secrets_in_error_messages_are_masked() -> None:
    guard = Guard(BUILT_IN)
    with pytest.raises(InvalidRequest) as caught, guard.mask_errors():
        raise InvalidRequest(f"role is {KEY!r}", param=f"messages[0].{KEY}")
    assert str(caught.value) == f"role is '{GONE}'"
    assert caught.value.param == f"messages[0].{GONE}"


@given(draw_planted(), st.sampled_from(["user", "assistant"]))
@settings(max_examples=examples(100))
def test_messages_with_equal_text_stay_equal_after_redaction(plant: tuple[str, str, str, str], role: str) -> None:
    _, before, secret, behind = plant
    guard = Guard(BUILT_IN)
    one, other = (
        Message(role=role, content=before + secret + behind),
        Message(role=role, content=(Part("text", before + secret + behind),)),
    )
    assert (
        len(
            {
                encode_canonical(told)
                for told in (*guard.mask_messages([one, other]), *guard.mask_messages(guard.mask_messages([one])))
            }
        )
        == 1
    )


# -- settings ------------------------------------------------------------------------------


# -- stored bytes --------------------------------------------------------------------


def make_message_with(place: int, text: str) -> Message:
    """Return a message with `text` in one of eight places and harmless text in the others."""
    fields = [text if at == place else "nothing to hide" for at in range(8)]
    arguments = json.dumps({"a": fields[2], fields[3]: [1]}, ensure_ascii=False)
    return Message(
        role="assistant",
        content=(Part("text", fields[0]), Part("text", "plain", {"note": fields[1]})),
        tool_calls=(ToolCall("c", "f", arguments, extra={"x": [fields[4]]}),),
        name=fields[5],
        extra={"reasoning": {"deep": fields[6]}, fields[7]: True},
    )


@given(draw_planted(), st.integers(0, 7))
@settings(max_examples=examples(400))
def test_stored_bytes_contain_no_planted_secret(plant: tuple[str, str, str, str], place: int) -> None:
    rule, before, secret, behind = plant
    around = encode_payload(make_message_with(place, f"{before} {behind} [REDACTED:{rule}]"))
    assume(secret.encode() not in around)  # "111" may be a word as well
    said = before + secret + behind
    [told] = Guard(BUILT_IN).mask_messages([make_message_with(place, said)])
    once, twice = (secret.replace("\\", "\\" * deep).replace("\n", "\\" * (deep - 1) + "n") for deep in (2, 4))
    stored = encode_payload(told)
    assert not [form for form in (secret, once, twice) if form.encode() in stored]
    # Nothing else has changed.
    assert told == make_message_with(place, BUILT_IN.redacted(said))
