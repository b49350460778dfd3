"""Check a configuration for `holdfast config check`: mistakes, warnings, and the values as loaded, without secrets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from holdfast.agents.team import BELOW, CALLED
from holdfast.config.convert import suggest
from holdfast.config.loader import examine_settings
from holdfast.config.model import BUILT_IN, OFFLINE, Config
from holdfast.config.resolve import ANTHROPIC_URL, OPENAI_URL, find_store_mistake, resolve_context, resolve_llm
from holdfast.config.show import describe
from holdfast.context.strategies import WITHOUT_MODEL
from holdfast.distribution import format_install_hint
from holdfast.domain.budget import describe_unknown_window, window_of
from holdfast.errors import ConfigError, HoldfastError, InvalidRequest, MissingExtra
from holdfast.hosts import is_loopback
from holdfast.numbers import format_count
from holdfast.secrets.rules import ALL, EXTRA, choose_rules, find_unknown, is_library_installed
from holdfast.sections import mask_url
from holdfast.stores.checks import DOT_SEGMENTS
from holdfast.tools.artifacts import TOOLS as ARTIFACT_TOOLS
from holdfast.tools.mcp.settings import EXTRA as MCP_EXTRA
from holdfast.tools.mcp.settings import McpSettings, get_tool_prefix
from holdfast.tools.memory import MEMORY
from holdfast.tools.search import ALIAS as SEARCH_ALIAS
from holdfast.tools.search import SEARCH
from holdfast.tools.text_editor import TEXT_EDITOR
from holdfast.tools.tool import PYTHON
from holdfast.tools.workspace import TOOLS as WORKSPACE_TOOLS

Findings = Iterator[tuple[str, str]]
"""Pairs of the path of a key and a message."""
_BUILT = frozenset({MEMORY, PYTHON, SEARCH, SEARCH_ALIAS, TEXT_EDITOR, *ARTIFACT_TOOLS})
"""Names of the built-in tools."""
_KEY_HEADERS = ("authorization", "x-api-key")
"""Names of headers that may contain the API key, in lower case."""


# -- the report --------------------------------------------------------------------


class Report(NamedTuple):
    """Output and exit code of `holdfast config check`."""

    exit_code: int
    """0: the configuration can be served, possibly with warnings. 1: it cannot be served. 2: the file does not exist."""
    text: str
    data: dict[str, Any]
    """Output of `--json`."""


def check_config(
    file: str | None, env: Mapping[str, str], *, prepare: Callable[[Config], object] = lambda _: None
) -> Report:
    """Run `holdfast config check [FILE]`.

    Args:
        file: the file to check. None: the file that `holdfast serve` would read.
        env: the environment variables.
        prepare: builds the server that `holdfast serve` would run, without opening it. Its errors are reported as mistakes.
    """
    found, exposed = examine_settings({"config": file}, env)
    config = found.config
    if found.is_missing:
        data = {"file": config.file, "ok": False, "problems": found.problems, "warnings": []}
        return Report(2, "\n".join(found.problems), data)
    refusals, doubts = (
        _format_lines(config, (one for one in listed if not _is_consequence(one[0], found.wrong)))
        for listed in (_find_refusals(config), _find_doubts(config))
    )
    if any("." not in path and "[" not in path for path in found.wrong):  # a whole section is wrong
        doubts = []
    problems = list(dict.fromkeys([*found.problems, *refusals]))
    mistake = find_store_mistake(config)
    # A configuration without a usable database loads, because `--store` may name one.
    loads = all(mistake is not None and line.endswith(mistake[1]) for line in found.problems)
    if loads and not problems:
        problems = _try_to_build(prepare, config)
    warnings = [line for line in [*doubts, *exposed] if line not in problems]
    data = {"file": config.file, "ok": not problems, "problems": problems, "warnings": warnings}
    lines = [*problems, *(f"warning: {warning}" for warning in warnings)]
    if loads:
        return _report_loaded(config, lines, data)
    count = f"{config.file or 'defaults'}: {format_count(len(problems), 'mistake')}"
    return Report(1, "\n".join([*lines, count]), data)


def _try_to_build(prepare: Callable[[Config], object], config: Config) -> list[str]:
    """Return the errors of `prepare`; an empty list if there are none."""
    try:
        prepare(config)
    except ConfigError as exc:
        return list(exc.problems)
    except HoldfastError as exc:
        return [str(exc)]
    return []


def _is_consequence(path: str, wrong: Collection[str]) -> bool:
    """Return True if a message about the key `path` may be a consequence of a mistake at one of the paths in `wrong`."""
    causes = {"gateway.host": "auth", "storage.sessions.database": "databases", "storage.sessions.backend": "databases"}
    near = [path, causes.get(path, path)]
    return any(
        f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.") for one in near for other in wrong
    )


def _report_loaded(config: Config, lines: Sequence[str], data: dict[str, Any]) -> Report:
    llm, shown = resolve_llm(config), describe(config)
    has_store = find_store_mistake(config) is None or "store" in config.places
    store = mask_url(config.store) if has_store else "none"
    model = {"name": llm.model, "provider": llm.provider, "base_url": mask_url(llm.base_url), "origin": llm.origin}
    answers = f"{llm.model} at {model['base_url']} ({llm.origin})" if llm.base_url else "offline, built in"
    verdict = "ok" if data["ok"] else "loads, but this version cannot serve it"
    count = f", {format_count(len(data['warnings']), 'warning')}" if data["warnings"] else ""
    head = [f"{config.file or 'defaults'}: {verdict}{count}", f"model: {answers}", f"store: {store}", ""]
    body = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=100).rstrip()
    text = "\n".join([*lines, *head, body])
    return Report(0 if data["ok"] else 1, text, {**data, "model": model, "store": store, "config": shown})


# -- warnings ----------------------------------------------------------------------


def _format_lines(config: Config, found: Iterable[tuple[str, str]]) -> list[str]:
    """Format findings as lines, in the order of the file and without duplicates. Each line begins with its place in the file."""
    lines = sorted(dict.fromkeys(found), key=lambda one: config.places[one[0]].line if one[0] in config.places else 0)
    return [config.format_mistake(path, message) for path, message in lines]


def _find_refusals(config: Config) -> Findings:
    """Yield the reasons why `serve` would reject a configuration that can be loaded."""
    if mistake := find_store_mistake(config):
        yield mistake
    if config.auth.required is False:
        yield from _find_exposed(config)
    for name in DOT_SEGMENTS.intersection(config.agents):
        yield "agents", f"an agent must not be called {name!r}: HTTP clients resolve it in the path of a URL"
    yield from _find_missing_rules(config)
    yield from _find_mcp_mistakes(config)


def _find_doubts(config: Config) -> Findings:
    """Yield warnings about settings that are accepted but will not work as intended."""
    yield from _find_exposed(config)
    yield from _find_unknown_names(config)
    yield from _find_unknown_tools(config)
    yield from _find_unknown_models(config)
    yield from _find_fallbacks(config)
    for name, llm in config.llms.items():
        if not llm.context_window and llm.provider != "offline":
            note = describe_unknown_window(resolve_llm(config, name).model)
            if note:
                yield f"llms.{name}", note
    yield from _find_missing_keys(config)
    guards = config.secret_guard is not None and config.secret_guard.enabled
    for key in ("patterns", "rules", "exclude_rules"):
        is_used = config.redaction.enabled or (guards and key == "patterns")
        if f"redaction.{key}" in config.places and not is_used:
            yield f"redaction.{key}", "redaction is disabled; set `redaction.enabled: true`"
    for at, webhook in enumerate(config.hooks.webhooks):
        parts = urlsplit(webhook.url)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            yield f"hooks.webhooks[{at}].url", "http:// sends conversations unencrypted; use https://"
    sessions, key = config.storage.sessions, "sessions.max_sessions"
    is_kept = sessions.backend != "inmemory" and not sessions.retention
    if key in config.places and config.sessions.max_sessions and is_kept:
        message = "closes the session that has been idle longest, but keeps it on disk forever"
        yield key, f"{message}: set storage.sessions.retention to limit disk usage"


def _find_exposed(config: Config) -> Findings:
    reached = f"{config.gateway.host} can be reached from other machines"
    if is_loopback(config.gateway.host) or config.auth.kind == "always":
        return
    if config.auth.kind == "never":
        yield "gateway.host", f"{reached}, and auth.required is false: the server will not start"
    else:
        remedy = "create one with `holdfast keys create`"
        yield "gateway.host", f"{reached}: the server starts only if a key exists; {remedy}"


def _find_unknown_names(config: Config) -> Findings:
    """Yield a warning for each embedder and each agent that is named but does not exist."""
    for key in ("memory", "index"):
        part = getattr(config.storage, key)
        if part and part.embedder and part.embedder not in {*config.embedders, *BUILT_IN}:
            yield f"storage.{key}.embedder", f"no embedder {part.embedder!r}{suggest(part.embedder, config.embedders)}"
    for name, agent in config.agents.items():
        for relation in (*BELOW, CALLED):
            for other in (other for other in getattr(agent, relation) if other not in config.agents):
                near = suggest(other, config.agents)
                yield f"agents.{name}.{relation}", f"no agent {other!r}: turns of {name!r} are rejected{near}"


def _find_unknown_tools(config: Config) -> Findings:
    """Yield a warning for each tool that is disabled or not built in. A program may still register a tool by that name."""
    # The tools of an MCP server are only known while it runs, so only the prefix of the name is compared.
    prefixes = tuple(get_tool_prefix(name, one.prefix) for name, one in config.mcp_servers.items())
    for name, agent in config.agents.items():
        path = f"agents.{name}.tools"
        for tool in agent.tools or ():
            if tool == PYTHON and not config.python.enabled:
                yield path, f"tool {tool!r} is disabled and left out: set python.enabled: true"
            elif tool in WORKSPACE_TOOLS:
                if not (config.hooks.workspace_git and config.hooks.workspace_git.enabled):
                    yield path, f"tool {tool!r} is disabled, so turns are rejected: enable hooks.workspace_git"
            elif tool not in {*_BUILT, *config.mcp_servers} and not tool.startswith(prefixes):
                yield path, f"no built-in tool {tool!r}: turns are rejected unless the program registers it"


def _find_unknown_models(config: Config) -> Findings:
    used = [(f"agents.{name}.llm", agent.llm) for name, agent in config.agents.items()]
    contexts = {f"agents.{name}.context" if name else "context": name for name in (None, *config.agents)}
    options = {path: resolve_context(config, name).options for path, name in contexts.items()}
    used += [(f"{path}.summarizer_llm", given.get("summarizer_llm")) for path, given in options.items()]
    for path, model in used:
        if model is None or path not in config.places or model in {*config.llms, *BUILT_IN, OFFLINE, *WITHOUT_MODEL}:
            continue
        if window_of(model) is None:
            yield path, f"no llm {model!r}: used as a model's name{suggest(model, config.llms)}"
    for path, given in options.items():
        scorer = given.get("scorer")
        if scorer is not None and scorer not in config.llms and f"{path}.scorer" in config.places:
            message = f"no llm {scorer!r}: signals of the text are used instead{suggest(scorer, config.llms)}"
            yield f"{path}.scorer", message


def _find_fallbacks(config: Config) -> Findings:
    """Yield a warning for each fallback that will not be used, or will not work as intended.

    Two models may name each other as fallbacks, because fallbacks of fallbacks are not used.
    """
    is_passed = config.gateway.upstream_auth == "passthrough"
    for name, llm in config.llms.items():
        own, path = resolve_llm(config, name), f"llms.{name}.fallbacks"
        seen = {(own.origin, own.model)}
        for other in llm.fallbacks:
            found = resolve_llm(config, other)
            if (found.origin, found.model) in seen:
                itself = (found.origin, found.model) == (own.origin, own.model)
                yield path, f"{other!r} is {'the same model' if itself else 'listed before'}: it is called once"
            elif other not in {*config.llms, *BUILT_IN, OFFLINE} and window_of(other) is None:
                yield path, f"no llm {other!r}: used as a model's name{suggest(other, config.llms)}"
            elif is_passed and urlsplit(found.base_url)[:2] != urlsplit(own.base_url)[:2]:
                reason = "a client's own key is not sent to it (gateway.upstream_auth)"
                yield path, f"{other!r} has another address: {reason}"
            seen.add((found.origin, found.model))


def list_missing_keys(config: Config) -> list[str]:
    """Return one line for each entry of `llms` that calls OpenAI or Anthropic without an API key.

    Each line begins with its place in the file.
    """
    return _format_lines(config, _find_missing_keys(config))


def _find_missing_keys(config: Config) -> Findings:
    """Yield a warning for each entry of `llms` whose provider would reject every call, because no API key is set.

    With `gateway.upstream_auth: passthrough` there is no warning, because clients send their own keys.
    """
    if config.gateway.upstream_auth == "passthrough":
        return
    for name, entry in config.llms.items():
        llm = resolve_llm(config, name)
        has_key = llm.api_key or any(header.lower() in _KEY_HEADERS for header in llm.headers)
        if llm.base_url in (OPENAI_URL, ANTHROPIC_URL) and not has_key:
            variable = "" if entry.base_url else f" or {llm.provider.upper()}_API_KEY"
            yield f"llms.{name}", f"no API key: {llm.base_url} will refuse every call; set api_key{variable}"


def _find_missing_rules(config: Config) -> Findings:
    redaction, guard = config.redaction, config.secret_guard
    wanted = {
        "redaction": redaction.enabled and _uses_rules(redaction.rules, redaction.exclude_rules),
        "secret_guard": guard and guard.enabled and _uses_rules((ALL,), guard.exclude_rules),
    }
    for key, rules in wanted.items():
        if rules and not is_library_installed():
            yield key, f"the built-in rules need {format_install_hint(EXTRA)}"


def _uses_rules(rules: Sequence[str], exclude: Sequence[str]) -> bool:
    """Return True if at least one built-in rule is used. Return False if a name is unknown, which is reported separately."""
    return not find_unknown([*rules, *exclude]) and bool(choose_rules(rules, exclude))


def _find_mcp_mistakes(config: Config) -> Findings:
    for name in config.mcp_servers:
        try:
            McpSettings(name=name, command="any")
        except InvalidRequest as exc:
            yield f"mcp_servers.{name}", str(exc)
    if config.mcp_servers and find_spec("mcp") is None:
        yield "mcp_servers", str(MissingExtra("an MCP server", extra=MCP_EXTRA))
