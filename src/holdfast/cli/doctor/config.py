"""The configuration: whether it can be used, where the server listens, which limits hold, what agents' workspaces need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from holdfast.cli.doctor.finding import Finding, fail, ok, warn
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.config import Config, ServerSettings
    from holdfast.errors import ConfigError
    from holdfast.workspace import WorkspaceSettings

CHECK = "config"


def file(flag: str | None, env: Mapping[str, str]) -> Iterator[Finding]:
    """The file that would be read: every mistake and warning in it, each a finding of its own."""
    from holdfast.cli.serve import prepared
    from holdfast.config import check_config

    report = check_config(flag, env, prepare=prepared)
    name, problems, warnings = (
        report.data["file"] or "no file, defaults",
        report.data["problems"],
        report.data["warnings"],
    )
    for problem in problems:
        yield fail(CHECK, problem, "set it right; `holdfast config check` reads it again")
    for warning in warnings:
        yield warn(CHECK, warning, "see docs/configuration.md for what the key means")
    if not problems and not warnings:
        yield ok(CHECK, f"{name}: valid")


def unusable(error: ConfigError) -> Finding:
    """The file, the flags and the environment together name nothing that can be used: the rest was not looked at."""
    return fail(CHECK, f"store, limits and models were not checked: {error.problems[0]}", "set it right first")


def host(settings: ServerSettings) -> Finding:
    """Where `serve` would listen."""
    from holdfast.config.gateway import is_loopback

    where = f"{settings.host}, port {settings.port or 'any free one'}"
    if is_loopback(settings.host):
        return ok("host", f"{where}: reached from this machine only")
    kind = settings.config.auth.kind
    if kind == "always":
        return ok("host", f"{where}: other machines reach it, with a key")
    if kind == "keys":
        remedy = "`holdfast keys create` makes a key"
        return warn(
            "host", f"{where}: other machines reach it, with a key; it is not served before there is one", remedy
        )
    return fail("host", f"{where}: other machines would reach it without a key", "set gateway.host to 127.0.0.1")


def limits(settings: ServerSettings) -> Finding:
    """The limits in force, with their numbers."""
    from holdfast.config import resolve_llm
    from holdfast.durations import format_duration
    from holdfast.limits import BODIES, DEPTH, ID_BYTES, MESSAGE_BYTES, METADATA_BYTES, PAGE, STATE_BYTES
    from holdfast.settings import format_size

    most, timeout = settings.config.gateway.limits, resolve_llm(settings.config).timeout
    held = [
        f"request body {format_size(most.body)}, {BODIES} of them at once, {format_duration(most.body_timeout)} to arrive",
        f"message {format_size(most.message)}, {format_size(MESSAGE_BYTES)} stored",
        f"{most.messages:,} messages a request, {most.tools:,} tools",
        f"{most.parts:,} parts and {most.tool_calls:,} calls a message",
        f"{DEPTH} levels of JSON",
        f"identifier {ID_BYTES} bytes",
        f"metadata {format_size(METADATA_BYTES)}, state {format_size(STATE_BYTES)}",
        f"page {PAGE:,}",
        f"upstream {format_duration(timeout.connect)} to connect, {format_duration(timeout.read)} of silence",
    ]
    return ok("limits", "; ".join(held))


# -- workspaces ------------------------------------------------------------------

WORKSPACES = "workspaces"


def workspace_findings(config: Config) -> Iterator[Finding]:
    """One about git, the extra that looks for secrets, and the folder; none where workspaces are off. No folder is made."""
    import anyio

    from holdfast.config.build import build_workspace_settings

    settings = build_workspace_settings(config.hooks.workspace_git)
    if settings is None:
        return
    try:
        version = anyio.run(_git_version, settings)
    except HoldfastError as error:
        yield fail(WORKSPACES, str(error), "until then sessions go on, and nothing is committed")
    else:
        yield ok(WORKSPACES, f"{settings.path}: {version}")


async def _git_version(settings: WorkspaceSettings) -> str:
    """Which git there is; what cannot be used raises."""
    from holdfast.holdfast import milliseconds
    from holdfast.workspace import Workspaces

    return await Workspaces.of(settings, milliseconds).git.version()
