"""Secrets in a workspace block the commit, wherever they are, and are quoted nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import SecretBlocked
from holdfast.secrets import Guard, make_redactor
from holdfast.secrets.rules import Pattern
from holdfast.workspace import Workspace, Workspaces
from tests.clocks import TickingClock
from tests.fake_secrets import KEY
from tests.service.workspace_kit import LARGE, NEEDS_GIT, _kept, _one, everything, git, subjects

pytestmark = NEEDS_GIT

__all__ = ["_kept", "_one"]


async def test_secret_blocks_the_commit_and_the_error_has_only_its_place(one: Workspace) -> None:
    (one.folder / "ok").write_text("1")
    (one.folder / "deep").mkdir()
    (one.folder / "deep" / "notes.md").write_text(f"first\r\nthe key {KEY}\n")
    with pytest.raises(SecretBlocked, match=r"deep/notes\.md, line 2 \(rule aws_access_key\)") as caught:
        await one.commit("x")
    assert KEY not in str(caught.value)
    assert await subjects(one) == ["workspace init"]
    assert git(one.folder, "status", "--porcelain") == "?? deep/\n?? ok\n"
    assert KEY.encode() not in everything(one)
    (one.folder / "deep" / "notes.md").write_text("first\n")
    assert await one.commit("x")


@pytest.mark.parametrize(
    "data",
    [
        b"\0\1\2 " + KEY.encode() + b" \xff",
        KEY.encode("utf-16"),
        KEY.encode("utf-16-le"),
        KEY.encode("utf-16-be"),
        b"\xff" + KEY.encode(),
        f"\ufeff{KEY}".encode(),
    ],
)
async def test_secret_next_to_binary_data_is_found(one: Workspace, data: bytes) -> None:
    (one.folder / "a.bin").write_bytes(data)
    with pytest.raises(SecretBlocked):
        await one.commit("x")


async def test_only_changes_are_searched_for_secrets(one: Workspace) -> None:
    """A secret that another writer committed is stored already; one in an ignored or left out file is not committed."""
    (one.folder / "theirs").write_text(KEY)
    git(one.folder, "add", "theirs")
    git(one.folder, *("-c", "user.name=U", "-c", "user.email=u@example.org", "commit", "-q", "-m", "theirs"))
    (one.folder / "a.tmp").write_text(KEY)
    (one.folder / "large").write_bytes(KEY.encode() + b"\n" + LARGE)
    (one.folder / "new").write_text("x")
    assert await one.commit("x")


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
