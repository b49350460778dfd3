"""`config check` refuses exactly the configurations that `serve` refuses: both build the server by the same code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.cli.serve import prepare_server
from holdfast.config import check_config, load_settings
from holdfast.config.build import Clients
from holdfast.errors import HoldfastError
from holdfast.server import run

LOCAL = {"gateway": {"host": "127.0.0.1"}}
CASES: dict[str, tuple[dict[str, Any], bool | None]] = {
    "defaults": ({}, True),
    "memory's embedder is unknown": ({"storage": {"memory": {"backend": "hybrid", "embedder": "nope"}}}, False),
    "memory's embedder is unknown, keyword": ({"storage": {"memory": {"embedder": "nope"}}}, False),
    "index's embedder is unknown": ({"storage": {"index": {"type": "hybrid", "embedder": "nope"}}}, False),
    "index's database is unknown": ({"storage": {"index": {"database": "nope"}}}, False),
    "agent's strategy is unknown": ({"agents": {"a": {"context": {"strategy": "nope"}}}}, False),
    "agent's threshold": ({"agents": {"a": {"context": {"strategy": "summary_buffer", "threshold": 1.2}}}}, False),
    "agent's llm is unknown": ({"agents": {"a": {"llm": "nope"}}}, None),
    "sub-agent is unknown": ({"agents": {"a": {"sub_agents": ["nope"]}}}, None),
    "llm is the server itself": ({"llms": {"default": {"base_url": "http://127.0.0.1:8377/v1"}}}, False),
    "fallback is unknown": ({"llms": {"default": {"base_url": "http://u/v1", "fallbacks": ["nope"]}}}, None),
    "others could come in without a key": ({"gateway": {"host": "0.0.0.0"}, "auth": {"required": False}}, False),
    "no key can be there yet": ({"gateway": {"host": "0.0.0.0"}}, False),
    "port is a word": ({"gateway": {"port": "many"}}, False),
    "unknown section": ({"gatewy": {}}, None),
}
"""A configuration, and whether it can be served; None: only that both agree."""


def is_refused_by_serve(file: str) -> bool:
    """Return True if `serve` refuses the file before it opens anything."""
    try:
        settings = load_settings({"config": file}, {})
        run.prepare(settings, clients=Clients())
    except HoldfastError:
        return True
    return False


@pytest.mark.parametrize("name", CASES)
def test_config_check_and_serve_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    given, served = CASES[name]
    file = tmp_path / "holdfast.yaml"
    file.write_text(yaml.safe_dump({**LOCAL, **given} if given else LOCAL))
    checked = check_config(os.fspath(file), {}, prepare=prepare_server).exit_code == 0
    assert checked != is_refused_by_serve(os.fspath(file))
    if served is not None:
        assert checked == served
