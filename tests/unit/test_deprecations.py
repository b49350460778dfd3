"""Former names: all of them are listed, still work, and warn once each time that a program uses one."""

from __future__ import annotations

import importlib
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

import holdfast
from holdfast import config
from holdfast.cli import commands
from holdfast.deprecations import DEPRECATIONS, REMOVED, Deprecation
from holdfast.domain import history
from holdfast.server.app import ROUTES
from scripts.public_names import server_names

NAMES = [one for one in DEPRECATIONS if one.kind == "name"]


def of_kind(kind: str) -> set[str]:
    return {one.old for one in DEPRECATIONS if one.kind == kind}


def find_attribute(path: str) -> Any:
    """Return the function that a dotted path names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


async def use_former_name(old: str) -> tuple[Any, Any]:
    """Use a former name in this file, and return its value and that of the new name."""
    loaded = config.load("sessions: {ttl: 1h, max_messages: 7}", env={})
    match old:
        case "holdfast.DreamingSettings":
            return holdfast.DreamingSettings, holdfast.ConsolidationSettings
        case "holdfast.open(dreaming=)":
            settings = holdfast.ConsolidationSettings(enabled=False)
            hf = holdfast.open("sqlite://:memory:", dreaming=settings)
            async with hf:
                return hf.consolidation.settings, settings.decides
        case "Config.dreaming":
            return loaded.dreaming, loaded.consolidation
        case "Config.short_term":
            return loaded.short_term, loaded.sessions
        case "Config.sessions.session_ttl":
            return loaded.sessions.session_ttl, loaded.sessions.ttl
        case "Config.sessions.max_history_turns":
            return loaded.sessions.max_history_turns, loaded.sessions.max_messages
        case "holdfast.domain.history.continued":
            return history.continued, history.continue_log
    async with holdfast.open("sqlite://:memory:") as hf:
        context = await (await hf.session("s")).context()
        match old:
            case "Holdfast.dreams":
                return hf.dreams, hf.consolidation
            case "Holdfast.consolidation.dream":
                owner = holdfast.Owner("user", "ada")
                return await hf.consolidation.dream(owner), await hf.consolidation.consolidate(owner)
            case "Context.tokens":
                return context.tokens, context.conversation_tokens
            case "Context.counted":
                return context.counted, context.provider_count
    raise AssertionError(f"no check for {old}")


@pytest.mark.parametrize("one", NAMES, ids=lambda one: one.old)
async def test_a_former_name_works_and_warns_once(one: Deprecation) -> None:
    """The warning names the replacement, and points at the line of the program."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if one.old.startswith("holdfast.config."):
            found, new = getattr(config, one.old.rpartition(".")[2]), find_attribute(one.new)
        else:
            found, new = await use_former_name(one.old)
    assert found == new
    (warning,) = [given for given in caught if given.category is DeprecationWarning]
    assert str(warning.message) == f"{one.old} is now {one.new}; the former name is removed in {REMOVED}"
    assert warning.filename == __file__


def test_an_import_of_a_former_name_warns_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from holdfast import DreamingSettings
        from holdfast.config import config_check
        from holdfast.domain.history import continued
    assert [one.filename for one in caught] == [__file__] * 3
    assert (DreamingSettings, continued) == (holdfast.ConsolidationSettings, history.continue_log)
    assert config_check is config.check_config


def test_only_one_module_makes_these_warnings() -> None:
    """Otherwise a former name could be missing from the list."""
    makers = [path for path in server_names.SOURCE.rglob("*.py") if "DeprecationWarning" in path.read_text("utf-8")]
    assert [path.name for path in makers] == ["deprecations.py"]


def test_deprecated_fields_and_routes_are_listed() -> None:
    """They are those that the OpenAPI document marks as deprecated."""
    document = server_names.get_document()
    fields = {
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field, one in schema.get("properties", {}).items()
        if one.get("deprecated")
    }
    assert fields == of_kind("field")
    assert {route for _, route, _, is_deprecated in server_names.list_routes() if is_deprecated} == of_kind("route")
    by_name = {f"{route.method} {route.path}": route for route in ROUTES}
    for one in DEPRECATIONS:
        if one.kind == "field":
            schema, _, field = one.new.partition(".")
            assert field in document["components"]["schemas"][schema]["properties"]
        elif one.kind == "route":
            assert by_name[one.old].replaced_by == one.new
            assert by_name[one.new].query == by_name[one.old].query
            assert by_name[one.new].body == by_name[one.old].body


def list_hidden(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    for name, one in command.commands.items() if isinstance(command, click.Group) else ():
        yield from [(f"{path} {name}", one)] * one.hidden
        yield from list_hidden(one, f"{path} {name}")


def test_former_commands_are_listed_and_warn(tmp_path: Any) -> None:
    """They are the hidden ones. The warning is on stderr, so output that a program reads stays unchanged."""
    hidden = dict(list_hidden(commands, "holdfast"))
    assert hidden.keys() == of_kind("command")
    store = ["--store", f"sqlite:///{tmp_path}/chat.db"]
    made = CliRunner().invoke(commands, ["keys", "create", "--user", "ada", *store])
    assert made.exit_code == 0, made.output
    outputs = []
    for name in ("consolidate", "dream"):
        done = CliRunner().invoke(commands, ["memories", name, "--user", "ada", "--json", *store])
        assert done.exit_code == 0, done.output
        assert done.stderr.count("holdfast memories consolidate") == (name == "dream")
        outputs.append(re.sub(r"dream_\w+|\d{13}", "", done.stdout))
    assert outputs[0] == outputs[1]


def test_a_deprecated_route_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of the server names the replacement."""
    from holdfast.server import routes

    monkeypatch.setattr(routes, "_reported", set())
    route = next(one for one in ROUTES if one.replaced_by)
    warn: Callable[[], None] = route.report_use
    with caplog.at_level(logging.WARNING, logger="holdfast.server"):
        warn()
        warn()
    (record,) = caplog.records
    assert record.getMessage() == (
        "POST /v1/memories/dream is deprecated and will be removed in 0.3; use POST /v1/memories/consolidate"
    )
