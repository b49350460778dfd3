"""What `holdfast config check` tells: mistakes, warnings, and the configuration as it is understood, secrets hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import yaml
from msgspec import inspect

from holdfast.budget import window_note, window_of
from holdfast.config.convert import fields_of, form_of, nearest
from holdfast.config.kinds import Settings
from holdfast.config.loading import default, read
from holdfast.config.model import NOT_USED_YET, Config, Document
from holdfast.config.resolve import (
    BUILT_IN,
    OFFLINE,
    context_of,
    find_file,
    is_loopback,
    store_mistake,
    store_url,
    upstream_of,
)
from holdfast.config.values import MASK, format_duration, format_size, is_secret_name, mask_url
from holdfast.context.policies import WITHOUT_MODEL
from holdfast.context.settings import ContextSettings
from holdfast.errors import ConfigError
from holdfast.secrets.patterns import chosen
from holdfast.secrets.rules import EXTRA, installed
from holdfast.tools.tool import PLANNED, PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# -- warnings ----------------------------------------------------------------------


def check(config: Config) -> list[str]:
    """What loads and yet will not do what was meant: one line each, with its place, in the order of the file."""
    found = [*_not_used(config), *_references(config), *_tools(config), *_models(config), *_scorers(config)]
    return _lines(config, [*refused(config), *_exposed(config), *found, *_redaction_off(config), *_hooks(config)])


def refused(config: Config) -> list[tuple[str, str]]:
    """What loads and `serve` of this version refuses: places and messages."""
    mistake = store_mistake(config)
    exposed = _exposed(config) if config.auth.required is False else ()
    return [*([mistake] if mistake else []), *exposed, *_without_rules(config)]


def _lines(config: Config, found: Iterable[tuple[str, str]]) -> list[str]:
    lines = [(config.lines.get(path, 0), path, message) for path, message in dict.fromkeys(found)]
    return [
        f"{config.source}:{line}: {path}: {message}" if line else f"{config.source}: {path}: {message}"
        for line, path, message in sorted(lines, key=lambda found: found[0])
    ]


def _not_used(config: Config) -> Iterator[tuple[str, str]]:
    for pattern in NOT_USED_YET:
        section, star, key = pattern.partition(".*.")
        for path in [f"{section}.{name}.{key}" for name in getattr(config, section)] if star else [pattern]:
            if path in config.lines:
                yield path, "not used yet by this version"


def _references(config: Config) -> Iterator[tuple[str, str]]:
    for key in ("memory", "index"):
        part = getattr(config.storage, key)
        if part and part.embedder and part.embedder not in {*config.embedders, *BUILT_IN}:
            yield f"storage.{key}.embedder", f"no embedder {part.embedder!r}{_meant(part.embedder, config.embedders)}"
    for name, agent in config.agents.items():
        for other in agent.sub_agents:
            if other not in config.agents:
                yield f"agents.{name}.sub_agents", f"no agent {other!r}{_meant(other, config.agents)}"


def _tools(config: Config) -> Iterator[tuple[str, str]]:
    """A file names tools, and a program gives them: which there will be is not known here."""
    for name, agent in config.agents.items():
        for tool in agent.tools or ():
            if tool == PYTHON and not config.python.enabled:
                yield f"agents.{name}.tools", f"tool {tool!r} is off, and is left out: python.enabled turns it on"
            elif tool in PLANNED:
                yield f"agents.{name}.tools", f"tool {tool!r} is not available yet, and is left out"
            elif tool != PYTHON:
                yield (
                    f"agents.{name}.tools",
                    f"no tool {tool!r} is built in: turns are refused unless a program gives it",
                )


def _models(config: Config) -> Iterator[tuple[str, str]]:
    used = [(f"agents.{name}.llm", agent.llm) for name, agent in config.agents.items()]
    for name in [None, *config.agents]:
        prefix = f"agents.{name}." if name else ""
        used.append((f"{prefix}context.summarizer_llm", context_of(config, name).options.get("summarizer_llm")))
    for path, model in used:
        if model is None or path not in config.lines or model in {*config.llms, *BUILT_IN, OFFLINE, *WITHOUT_MODEL}:
            continue
        if window_of(model) is None:
            yield path, f"no llm {model!r}: taken for a model's name{_meant(model, config.llms)}"
    yield from _fallbacks(config)
    for name, llm in config.llms.items():
        note = None if llm.context_window or llm.provider == "offline" else window_note(upstream_of(config, name).model)
        if note:
            yield f"llms.{name}", note


def _fallbacks(config: Config) -> Iterator[tuple[str, str]]:
    """Those that will not be asked, or not as was meant. Two that name each other are right: a list is not followed on."""
    for name, llm in config.llms.items():
        own, path = upstream_of(config, name), f"llms.{name}.fallbacks"
        seen = {(own.origin, own.model)}
        for other in llm.fallbacks:
            found = upstream_of(config, other)
            if (found.origin, found.model) in seen:
                itself = (found.origin, found.model) == (own.origin, own.model)
                yield path, f"{other!r} is {'this very model' if itself else 'named before'}: it is asked once"
            elif other not in {*config.llms, *BUILT_IN, OFFLINE} and window_of(other) is None:
                yield path, f"no llm {other!r}: taken for a model's name{_meant(other, config.llms)}"
            elif config.gateway.upstream_auth == "passthrough" and _place(found.base_url) != _place(own.base_url):
                yield path, f"{other!r} is elsewhere: a client's own key is not handed on to it (gateway.upstream_auth)"
            seen.add((found.origin, found.model))


def _place(base_url: str) -> tuple[str, str]:
    parts = urlsplit(base_url)
    return parts.scheme, parts.netloc


def _scorers(config: Config) -> Iterator[tuple[str, str]]:
    for name in [None, *config.agents]:
        path = f"agents.{name}.context.scorer" if name else "context.scorer"
        scorer = context_of(config, name).options.get("scorer")
        if scorer is not None and scorer not in config.llms and path in config.lines:
            yield path, f"no llm {scorer!r}: signals of the text rate instead{_meant(scorer, config.llms)}"


def _exposed(config: Config) -> Iterator[tuple[str, str]]:
    reached = f"{config.gateway.host} can be reached from other machines"
    if is_loopback(config.gateway.host) or config.auth.kind == "always":
        return
    if config.auth.kind == "never":
        yield "gateway.host", f"{reached}, and auth.required is false: it is not served so"
    else:
        yield "gateway.host", f"{reached}: it is served as soon as there is a key; `holdfast keys create` makes one"


def _without_rules(config: Config) -> Iterator[tuple[str, str]]:
    redaction, guard = config.redaction, config.secret_guard
    wanted = {
        "redaction": redaction.enabled and redaction.use_builtins and chosen(redaction.rules, redaction.exclude_rules),
        "secret_guard": guard and guard.enabled and chosen(guard.rules, guard.exclude_rules),
    }
    for key, rules in wanted.items():
        if rules and not installed():
            yield key, f"the built-in rules need the extra {EXTRA!r}: pip install 'holdfast[{EXTRA}]'"


def _redaction_off(config: Config) -> Iterator[tuple[str, str]]:
    for key in ("patterns", "extra_patterns", "rules", "exclude_rules", "use_builtins"):
        if f"redaction.{key}" in config.lines and not config.redaction.enabled:
            yield f"redaction.{key}", "redaction is off; `enabled: true` turns it on"


def _hooks(config: Config) -> Iterator[tuple[str, str]]:
    hooks = config.hooks
    if hooks.transcripts_dir is None and "hooks.transcripts" in config.lines:
        yield "hooks.transcripts", "no transcripts are written; `transcripts_dir` says where"
    for at, webhook in enumerate(hooks.webhooks):
        parts = urlsplit(webhook.url)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            yield f"hooks.webhooks[{at}].url", "http:// sends what was said in the clear; use https://"


def _meant(name: str, known: Mapping[str, Any]) -> str:
    near = nearest(name, list(known))
    return f"; did you mean {near!r}?" if near else ""


# -- the configuration, shown --------------------------------------------------------


def describe(config: Config) -> dict[str, Any]:
    """The configuration as plain data, in the spelling of the file, defaults included, with no secret in it."""
    return _shown_settings(config, Document)


def _shown_settings(settings: Settings, cls: type[Settings]) -> dict[str, Any]:
    fields = fields_of(cls)
    given = {name: value for name in fields if (value := getattr(settings, name)) is not None}
    shown = {name: _shown(value, fields[name].type, name) for name, value in given.items()}
    return {name: value for name, value in shown.items() if value not in ({}, [])}


def _shown(value: Any, info: inspect.Type, name: str) -> Any:
    info, form = form_of(info)
    match value:
        case Settings():
            return _shown_settings(value, type(value))
        case ContextSettings():
            return {"strategy": value.strategy, **_masked(value.options, name="")}
        case dict() if isinstance(info, inspect.DictType) and form is None:
            return {key: _shown(item, info.value_type, key) for key, item in value.items()}
        case tuple() if isinstance(info, inspect.VarTupleType):
            return [_shown(item, info.item_type, name) for item in value]
        case _:
            return _shown_leaf(value, form, name)


def _shown_leaf(value: Any, form: str | None, name: str) -> Any:
    match form:
        case "secret":
            return MASK
        case "hidden":
            return dict.fromkeys(value, MASK)
        case "url":
            return mask_url(value)
        case "duration":
            return format_duration(value)
        case "size":
            return format_size(value)
        case _:
            return _masked(value, name=name)


def _masked(value: Any, *, name: str) -> Any:
    """Free data; what stands under a name that sounds like a secret, at any depth, is hidden."""
    if isinstance(value, dict):
        return {key: _masked(item, name=name if is_secret_name(name) else key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, name=name) for item in value]
    hidden = is_secret_name(name) and isinstance(value, str | int | float) and not isinstance(value, bool)
    return MASK if hidden else value


# -- the command -----------------------------------------------------------------------


class Report(NamedTuple):
    """What a command prints and ends with."""

    exit_code: int
    """0: it can be served, warnings or not; 1: it cannot; 2: there is no such file."""
    text: str
    data: dict[str, Any]
    """The same for `--json`."""


def config_check(file: str | None, env: Mapping[str, str]) -> Report:
    """The work of `holdfast config check [FILE]`.

    Args:
        file: the file; None: the one that `serve` would read.
        env: the environment.
    """
    path = find_file(file, env)
    name = path or "defaults"
    try:
        config = read(path, env) if path else default(env)
    except ConfigError as error:
        problems = error.problems
        missing = isinstance(error.__cause__, FileNotFoundError | IsADirectoryError)
        count = f"{len(problems)} mistake{'s' * (len(problems) > 1)}"
        text = problems[0] if missing else "\n".join([*problems, f"{name}: {count}"])
        return Report(2 if missing else 1, text, {"file": path, "ok": False, "problems": problems, "warnings": []})
    return _accepted(config, path, name)


def _accepted(config: Config, path: str | None, name: str) -> Report:
    problems = _lines(config, refused(config))
    warnings = [line for line in check(config) if line not in problems]
    model = upstream_of(config)
    try:
        store = mask_url(store_url(config))
    except ConfigError:  # among the problems
        store = "none"
    answers = f"{model.model} at {mask_url(model.base_url)} ({model.origin})" if model.base_url else "offline, built in"
    shown = describe(config)
    text = "\n".join(
        [
            *problems,
            *(f"warning: {warning}" for warning in warnings),
            _verdict(name, problems, warnings),
            f"model: {answers}",
            f"store: {store}",
            "",
            yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=100).rstrip(),
        ]
    )
    data = {
        "file": path,
        "ok": not problems,
        "problems": problems,
        "warnings": warnings,
        "model": {
            "name": model.model,
            "provider": model.provider,
            "base_url": mask_url(model.base_url),
            "origin": model.origin,
        },
        "store": store,
        "config": shown,
    }
    return Report(1 if problems else 0, text, data)


def _verdict(name: str, problems: list[str], warnings: list[str]) -> str:
    told = [f"{len(found)} {what}{'s' * (len(found) > 1)}" for found, what in ((warnings, "warning"),) if found]
    if problems:
        return ", ".join([f"{name}: loads, and this version cannot serve it", *told])
    return ", ".join([f"{name}: ok", *told])
