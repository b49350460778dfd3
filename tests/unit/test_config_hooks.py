"""Configuration of hooks: settings, problems, warnings, masked secrets and the resulting hooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import config
from holdfast.config.build import build_hooks
from holdfast.config.hooks import Hooks, Redaction
from holdfast.errors import ConfigError
from holdfast.hooks.transcripts import Transcripts
from holdfast.hooks.webhook import Webhook

WHOLE = """
hooks:
  transcripts_dir: kept
  webhooks:
    - {url: "http://example.org/a?token=sk-hidden", secret: whsec_c2VjcmV0, events: [ttl, shutdown]}
    - {url: "http://127.0.0.1:1/b", secret: sk-hidden, events: close,
       headers: {X-Key: sk-hidden}}
"""


def load(text: str) -> config.Config:
    return config.load(text, env={})


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load(text)
    return raised.value.problems


def test_hooks_are_built_with_transcripts_first() -> None:
    read = load(WHOLE)
    transcripts, first, second = build_hooks(read.hooks, read.redaction)
    assert isinstance(transcripts, Transcripts)
    assert transcripts.folder == Path("kept")
    assert isinstance(first, Webhook)
    assert first.reasons == {"ttl", "shutdown"}
    assert second.reasons == {"close"}
    assert build_hooks(Hooks(), Redaction()) == []


def test_two_webhooks_with_one_url_are_rejected() -> None:
    webhook = "{url: 'https://x/', secret: s}"
    (problem,) = problems(f"hooks: {{webhooks: [{webhook}, {webhook}]}}")
    assert "several have the same URL" in problem


def test_suspicious_settings_give_a_warning() -> None:
    warnings = config.list_warnings(load(WHOLE))
    (warning,) = (line for line in warnings if "hooks" in line)
    assert "hooks.webhooks[0].url: http:// sends conversations unencrypted" in warning


def test_secrets_are_masked() -> None:
    read = load(WHOLE)
    shown: Any = config.describe(read)["hooks"]
    assert "sk-hidden" not in f"{shown} {read!r} {read.hooks!r} {build_hooks(read.hooks, read.redaction)!r}"
    assert shown["webhooks"][1]["secret"] == "***"
    assert shown["webhooks"][1]["headers"] == {"X-Key": "***"}
