"""Secrets in messages: which texts are scanned, what is rejected, and what a store writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.config.check import check_config
from holdfast.config.loader import load
from holdfast.domain.messages import Message, Part, ToolCall, encode_canonical, encode_payload
from holdfast.errors import SecretBlocked
from holdfast.secrets.guard import Guard, make_guard
from holdfast.secrets.redactor import make_redactor
from tests.amounts import examples
from tests.unit.test_secrets import BUILT_IN, draw_planted

# -- messages ----------------------------------------------------------------------------

KEY = "sk-ant-" + "a1" * 30
GONE = "[REDACTED:anthropic_key]"


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


def test_a_rejection_names_five_places_and_the_number_of_others() -> None:
    guard = Guard(watch=make_redactor(), action="block")
    with pytest.raises(SecretBlocked, match=r"messages\[4\].content \(rule anthropic_key\) and 2 more: remove it"):
        guard.mask_messages([Message(role="user", content=KEY)] * 7)


def test_redaction_runs_before_the_guard() -> None:
    guard = Guard(make_redactor(rules=["anthropic_key"]), make_redactor(), "block")
    assert guard.mask_messages([Message(role="user", content=KEY)])[0].content == GONE
    with pytest.raises(SecretBlocked, match="rule home_path"):
        guard.mask_messages([Message(role="user", content=f"{KEY} /home/ada")])


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


PAGE = (Path(__file__).parents[2] / "docs" / "secrets.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
def test_docs_page_examples_load(text: str) -> None:
    found = load(text, env={})
    guard = make_guard(found.redaction, found.secret_guard)
    assert guard is not None
    assert guard.mask_messages([Message(role="user", content="EMP-123456")])[0].content == "[REDACTED:employee_number]"


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


def check_text(text: str, tmp_path: Path) -> Any:
    file = tmp_path / "holdfast.yaml"
    file.write_text(text)
    return check_config(str(file), {})


def test_check_config_reports_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.config.check.is_library_installed", lambda: False)
    assert check_text("redaction: {enabled: true, rules: []}", tmp_path).exit_code == 0
    assert check_text("secret_guard: {enabled: false}", tmp_path).exit_code == 0
    report = check_text("secret_guard: {}", tmp_path)
    assert report.exit_code == 1
    assert report.data["problems"][0].endswith(
        "secret_guard: the built-in rules need the extra 'secrets' of holdfast-memory; from a clone: pip install '.[secrets]'"
    )


def test_check_config_reports_a_missing_mcp_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.config.check.find_spec", lambda _: None)
    assert check_text("", tmp_path).exit_code == 0
    report = check_text("mcp_servers: {clock: {command: x}}", tmp_path)
    assert report.exit_code == 1
    assert report.data["problems"][0].endswith(
        ":1: mcp_servers: an MCP server needs the extra 'mcp' of holdfast-memory; from a clone: pip install '.[mcp]'"
    )
