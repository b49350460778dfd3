"""What a workspace commits, byte for byte, what it leaves out, and its commit messages."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.workspace import Workspace, Workspaces
from tests.amounts import examples
from tests.clocks import TickingClock
from tests.fake_secrets import KEY
from tests.service.workspace_kit import LARGE, NEEDS_GIT, _kept, _one, check_repository, content, files, git

__all__ = ["_kept", "_one"]


pytestmark = NEEDS_GIT


# -- commits -------------------------------------------------------------------------


async def test_links_are_committed_as_links_and_not_followed(one: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text(KEY)
    (one.folder / "dir").mkdir()
    (one.folder / "dir" / "f").write_text("inside")
    await one.commit("a")
    (one.folder / "dir" / "f").unlink()
    (one.folder / "dir").rmdir()
    (one.folder / "dir").symlink_to(outside)
    (one.folder / "file").symlink_to(outside / "f")
    (one.folder / "loop").symlink_to("loop")
    (one.folder / "round").symlink_to(".")
    os.mkfifo(one.folder / "pipe")
    await one.commit("b")
    assert files(one) == {".gitignore", ".gitattributes", "dir", "file", "loop", "round"}
    assert git(one.folder, "show", "HEAD:file") == str(outside / "f")
    assert git(one.folder, "ls-tree", "HEAD", "dir").startswith("120000 ")
    check_repository(one)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["a", "b", "c/a", "c/b", "c/d/e", "d.md"]),
            st.binary(max_size=12) | st.just(LARGE),
            max_size=5,
        ),
        max_size=4,
    )
)
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
async def test_committed_files_equal_the_files_on_disk(versions: list[dict[str, bytes]]) -> None:
    """The newest commit has every small file unchanged, and of a large one the last small version."""
    with tempfile.TemporaryDirectory() as root:
        workspace = Workspaces(root, TickingClock()).workspace("default", "w")
        await workspace.open()
        expected: dict[str, bytes] = {}
        for version in versions:
            for path in workspace.folder.rglob("*"):
                if (
                    path.is_file()
                    and ".git" not in path.parts[-2:]
                    and not str(path).startswith(f"{workspace.folder}/.git")
                ):
                    path.unlink()
            for name, data in version.items():
                (workspace.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (workspace.folder / name).write_bytes(data)
            small = {
                name: data.replace(b"\r\n", b"\n") if name.endswith(".md") and b"\0" not in data else data
                for name, data in version.items()
                if data != LARGE
            }
            stays = {name: data for name, data in expected.items() if version.get(name) == LARGE}
            made = await workspace.commit("x")
            assert (made is not None) == (expected != {**stays, **small})
            expected = {**stays, **small}
        there = files(workspace) - {".gitignore", ".gitattributes"}
        got = {name: content(workspace, name) for name in there}
        assert got == expected
