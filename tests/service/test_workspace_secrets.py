"""Secrets in a workspace block the commit, wherever they are, and are quoted nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import SecretBlocked
from holdfast.secrets.guard import Guard
from holdfast.secrets.redactor import make_redactor
from holdfast.secrets.rules import Pattern
from holdfast.workspace import Workspace, Workspaces
from tests.clocks import TickingClock
from tests.fake_secrets import KEY
from tests.service.workspace_kit import LARGE, NEEDS_GIT, _kept, _one, everything

pytestmark = NEEDS_GIT

__all__ = ["_kept", "_one"]


@pytest.mark.parametrize("place", ["name", "link", "subject", "body", "left out"])
async def test_secret_in_a_name_link_or_message_is_found(one: Workspace, place: str) -> None:
    if place == "name":
        (one.folder / KEY).write_text("x")
    elif place == "link":
        (one.folder / "link").symlink_to(KEY)
    elif place == "left out":
        (one.folder / f"{KEY}").write_bytes(LARGE)
    (one.folder / "new").write_text("x")
    subject, body = (KEY if place == part else "x" for part in ("subject", "body"))
    if place == "left out":
        made = await one.commit(subject, body)
        assert made is not None
        assert "a file whose name contains a secret" in made.body
    else:
        with pytest.raises(SecretBlocked) as caught:
            await one.commit(subject, body)
        assert KEY not in str(caught.value)
    assert KEY.encode() not in everything(one)


async def test_secrets_known_to_the_guard_block_the_commit(tmp_path: Path) -> None:
    """Whichever redactor of the guard knows them, and whatever the guard does elsewhere."""
    own = make_redactor(patterns=[Pattern(regex="canary-[0-9]+", label="canary")], rules=())
    for number, guard in enumerate((Guard(own), Guard(None, own, "warn"))):
        workspace = Workspaces(tmp_path / str(number), TickingClock(), guard).workspace("default", "w")
        for secret in ("canary-77", KEY):
            await workspace.write("MEMORY.md", f"x\n{secret}")
            with pytest.raises(SecretBlocked, match=r"MEMORY\.md, line 2"):
                await workspace.commit("x")
