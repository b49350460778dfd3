"""Check the configuration: validity, listening address, limits and workspaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from holdfast.cli.doctor.finding import Finding, fail, ok, warn
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.config.model import Config
    from holdfast.errors import ConfigError

CHECK = "config"


def check_file(flag: str | None, env: Mapping[str, str]) -> Iterator[Finding]:
    """Check the configuration file. Yield a finding for each error and each warning, or a single `ok` finding if the file is valid."""
    from holdfast.cli.serve import prepare_server
    from holdfast.config.check import check_config

    found = check_config(flag, env, prepare=prepare_server).data
    for problem in found["problems"]:
        yield fail(CHECK, problem, "correct it, then run `holdfast config check`")
    for warning in found["warnings"]:
        yield warn(CHECK, warning, "docs/configuration.md describes each key")
    if not found["problems"] and not found["warnings"]:
        yield ok(CHECK, f"{found['file'] or 'no file, defaults'}: valid")


def report_unusable(error: ConfigError) -> Finding:
    """Return a finding that checks were skipped, because file, flags and environment together are not a valid configuration."""
    return fail(CHECK, f"store, limits and models were not checked: {error.problems[0]}", "correct it first")


def check_host(config: Config) -> Finding:
    """Check that other machines cannot reach the address of `holdfast serve` without a key."""
    from holdfast.config.gateway import explain_users
    from holdfast.hosts import is_loopback

    gateway = config.gateway
    where = f"{gateway.host}, port {gateway.port or 'any free one'}"
    if is_loopback(gateway.host):
        users = explain_users(gateway, config.auth)
        return ok("host", f"{where}: reachable from this machine only{f'; {users}' if users else ''}")
    kind = config.auth.kind
    if kind == "always":
        return ok("host", f"{where}: reachable from other machines, with a key")
    if kind == "keys":
        remedy = "create a key with `holdfast keys create`"
        reached = f"{where}: reachable from other machines, with a key"
        return warn("host", f"{reached}; `serve` refuses to start without a key", remedy)
    return fail("host", f"{where}: reachable from other machines without a key", "set gateway.host to 127.0.0.1")


def check_limits(config: Config) -> Finding:
    """Report the limits that the server applies."""
    from holdfast import limits
    from holdfast.config.resolve import resolve_llm
    from holdfast.durations import format_duration
    from holdfast.sections import format_size
    from holdfast.server.limits import BODY_SECONDS

    gateway, timeout = config.gateway, resolve_llm(config).timeout
    parts = [
        f"request body {format_size(gateway.max_body)}, {format_duration(BODY_SECONDS)} to arrive",
        f"message {format_size(limits.REQUEST_MESSAGE_BYTES)}, {format_size(limits.MESSAGE_BYTES)} stored",
        f"{limits.REQUEST_MESSAGES:,} messages per request, {limits.REQUEST_TOOLS:,} tools",
        f"{limits.MESSAGE_PARTS:,} parts and {limits.MESSAGE_CALLS:,} calls per message",
        f"{limits.DEPTH} levels of JSON",
        f"identifier {limits.ID_BYTES} bytes",
        f"metadata {format_size(limits.METADATA_BYTES)}, state {format_size(limits.STATE_BYTES)}",
        f"page {limits.PAGE:,}",
        f"upstream {format_duration(limits.UPSTREAM_CONNECT_SECONDS)} to connect, {format_duration(timeout)} without data",
    ]
    return ok("limits", "; ".join(parts))


# -- workspaces ------------------------------------------------------------------

WORKSPACES = "workspaces"


def check_workspaces(config: Config) -> Iterator[Finding]:
    """If workspaces are enabled, check that git and the search for secrets work. No folder is created."""
    from holdfast.config.build import build_workspace_settings
    from holdfast.holdfast import get_milliseconds
    from holdfast.workspace import Workspaces

    settings = build_workspace_settings(config.hooks.workspace_git)
    if settings is None:
        return

    try:
        version = Workspaces.from_settings(settings, get_milliseconds).git.get_version()
        yield ok(WORKSPACES, f"{settings.path}: {version}")
    except HoldfastError as error:
        yield fail(WORKSPACES, str(error), "sessions work without it, but nothing is committed")
