"""Agents' workspaces: whether they can be committed, here and now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.cli.checkup.finding import Finding, fail, ok
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.workspace import WorkspaceSettings

CHECK = "workspaces"


def findings(config: Config) -> Iterator[Finding]:
    """One about git, the extra that looks for secrets, and the folder; none where workspaces are off. No folder is made."""
    import anyio

    from holdfast.config.build import build_workspace_settings

    settings = build_workspace_settings(config.hooks.workspace_git)
    if settings is None:
        return
    try:
        version = anyio.run(_looked, settings)
    except HoldfastError as error:
        yield fail(CHECK, str(error), "until then sessions go on, and nothing is committed")
    else:
        yield ok(CHECK, f"{settings.path}: {version}")


async def _looked(settings: WorkspaceSettings) -> str:
    """Which git there is; what cannot be used raises."""
    from holdfast.holdfast import milliseconds
    from holdfast.workspace import Workspaces

    return await Workspaces.of(settings, milliseconds).git.version()
