"""What a workspace commits, byte for byte, what it leaves out, and its commit messages."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidRequest, TooLarge
from holdfast.limits import WORKSPACE_SUBJECT_CHARS
from holdfast.workspace import Workspace, Workspaces
from tests.amounts import examples
from tests.clocks import TickingClock
from tests.fake_secrets import KEY
from tests.service.workspace_kit import LARGE, NEEDS_GIT, _kept, _one, check_repository, content, files, git, subjects

pytestmark = NEEDS_GIT

__all__ = ["_kept", "_one"]


# -- commits -------------------------------------------------------------------------


async def test_only_changes_are_committed(one: Workspace) -> None:
    (one.folder / "a").write_text("1")
    (one.folder / "deep" / "er").mkdir(parents=True)
    (one.folder / "deep" / "er" / "b").write_text("2")
    first = await one.commit("a", "the body\nof it")
    assert first is not None
    assert await one.commit("again") is None
    (one.folder / "deep" / "er" / "b").unlink()
    (one.folder / "a").chmod(0o755)
    assert await one.commit("b")
    history = await one.history()
    assert [commit.subject for commit in history.commits] == ["b", "a", "workspace init"]
    assert history.commits[1] == first
    assert first.body == "the body\nof it"
    assert files(one) == {".gitignore", ".gitattributes", "a"}
    assert git(one.folder, "ls-tree", "HEAD", "a").startswith("100755 ")
    assert git(one.folder, "status", "--porcelain") == ""
    check_repository(one)


async def test_file_and_folder_can_swap_places(one: Workspace) -> None:
    (one.folder / "x").write_text("1")
    (one.folder / "y").mkdir()
    (one.folder / "y" / "z").write_text("2")
    await one.commit("a")
    (one.folder / "x").unlink()
    (one.folder / "x").mkdir()
    (one.folder / "x" / "w").write_text("3")
    (one.folder / "y" / "z").unlink()
    (one.folder / "y").rmdir()
    (one.folder / "y").write_text("4")
    await one.commit("b")
    assert files(one) == {".gitignore", ".gitattributes", "x/w", "y"}
    check_repository(one)


async def test_ignored_files_are_not_committed_and_committed_ones_are_tracked(one: Workspace) -> None:
    for name in ("transcripts/s.jsonl", "media/p.png", "a.tmp", "deep/b.swp", ".DS_Store", "notes.md"):
        (one.folder / name).parent.mkdir(exist_ok=True)
        (one.folder / name).write_text("x")
    await one.commit("a")
    assert files(one) == {".gitignore", ".gitattributes", "notes.md"}
    (one.folder / ".gitignore").write_text("notes.md\n*.tmp\n*.swp\n.DS_Store\nmedia\ntranscripts\n")
    (one.folder / "notes.md").write_text("y")
    await one.commit("b")
    assert git(one.folder, "show", "HEAD:notes.md") == "y"
    (one.folder / ".git" / "info").mkdir()
    (one.folder / ".git" / "info" / "exclude").write_text("private\n")
    (one.folder / "private").write_text("x")
    assert await one.commit("c") is None


async def test_line_endings_follow_the_attributes(one: Workspace) -> None:
    (one.folder / "a.md").write_bytes(b"1\r\n2\n3\r\n")
    (one.folder / "b.bin").write_bytes(b"1\r\n")
    await one.commit("a")
    assert git(one.folder, "show", "HEAD:a.md") == "1\n2\n3\n"
    assert git(one.folder, "show", "HEAD:b.bin") == "1\r\n"
    assert git(one.folder, "status", "--porcelain") == ""
    assert await one.commit("b") is None


async def test_large_file_is_left_out_and_named_and_the_rest_is_committed(one: Workspace) -> None:
    (one.folder / "large.bin").write_bytes(LARGE)
    (one.folder / "just.bin").write_bytes(LARGE[1:])
    outcome = await one.attempt("a", "why")
    assert outcome.commit is not None
    assert [left.name for left in outcome.left_out] == ["large.bin"]
    assert outcome.commit.body.startswith("why\n\nLeft out:\n- large.bin: it has 1,048,577 bytes")
    assert git(one.folder, "log", "-1", "--format=%b").strip() == outcome.commit.body
    assert files(one) == {".gitignore", ".gitattributes", "just.bin"}
    outcome = await one.attempt("b")
    assert (outcome.commit, len(outcome.left_out)) == (None, 1)


async def test_file_that_outgrows_the_limit_keeps_its_last_version(one: Workspace) -> None:
    """It is not recorded as deleted; a deleted one is."""
    for name in ("grows", "goes"):
        (one.folder / name).write_text("small")
    await one.commit("a")
    (one.folder / "grows").write_bytes(LARGE)
    (one.folder / "goes").unlink()
    outcome = await one.attempt("b")
    assert [left.name for left in outcome.left_out] == ["grows"]
    assert git(one.folder, "show", "HEAD:grows") == "small"
    assert "goes" not in files(one)
    (one.folder / "grows").write_text("small again")
    await one.commit("c")
    assert git(one.folder, "show", "HEAD:grows") == "small again"


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


async def test_tracked_file_that_is_ignored_and_reached_by_a_link_is_not_read(one: Workspace, tmp_path: Path) -> None:
    (one.folder / "dir").mkdir()
    (one.folder / "dir" / "f").write_text("inside")
    await one.commit("a")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_text("outside")
    (one.folder / "dir").rename(one.folder / "gone.tmp")
    (one.folder / "dir").symlink_to(tmp_path / "outside")
    (one.folder / ".gitignore").write_text("dir\n*.tmp\n")
    await one.commit("b")
    assert files(one) == {".gitignore", ".gitattributes"}


NAMES = [
    b"-rf",
    b"--all",
    b'q"uo\\te',
    b"nl\nx",
    b"tab\t",
    b" ",
    b"a b",
    b"\xff\xfe",
    "ü".encode(),
    b":(top)x",
    b"*",
    b"[a]",
]


async def test_names_with_any_bytes_are_committed_unchanged(one: Workspace) -> None:
    for name in NAMES:
        (one.folder / os.fsdecode(name)).write_text("x")
    await one.commit("a")
    assert {os.fsencode(name) for name in files(one)} == {b".gitignore", b".gitattributes", *NAMES}
    assert git(one.folder, "status", "--porcelain") == ""
    assert await one.commit("b") is None
    check_repository(one)


async def test_names_that_git_treats_as_its_own_are_left_out(one: Workspace) -> None:
    for name in (".GIT", "git~1", ".git ", ".g\u200cit", "a\\.git", ".git\\b"):
        (one.folder / name).mkdir()
        (one.folder / name / "config").write_text("x")
    git(one.folder, "init", "-q", "within")
    (one.folder / "within" / "f").write_text("x")
    for name in (".gitmodules", ".GitModules ", "gitmod~1"):
        (one.folder / name).symlink_to("x")
    (one.folder / "ok").write_text("x")
    outcome = await one.attempt("a")
    assert files(one) == {".gitignore", ".gitattributes", "ok"}
    assert "within/" in {left.name for left in outcome.left_out}
    assert len(outcome.left_out) == 10
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


async def test_thousand_files_are_committed(one: Workspace) -> None:
    for number in range(1000):
        (one.folder / f"{number}.md").write_text(f"{number}\n")
    await one.commit("many")
    assert len(files(one)) == 1002
    (one.folder / "500.md").unlink()
    (one.folder / "501.md").write_text("other")
    await one.commit("fewer")
    assert git(one.folder, "show", "--format=", "--name-status", "HEAD") == "D\t500.md\nM\t501.md\n"
    check_repository(one)


async def test_too_many_files_are_rejected(one: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.workspace.repository.WORKSPACE_FILES", 5)
    for number in range(5):
        (one.folder / str(number)).write_text("x")
    with pytest.raises(TooLarge, match="has 7 files that are not ignored; at most 5"):
        await one.commit("x")
    monkeypatch.setattr("holdfast.workspace.repository.WORKSPACE_FILES", 7)
    monkeypatch.setattr("holdfast.workspace.files.WORKSPACE_COMMIT_BYTES", 4)
    with pytest.raises(TooLarge):
        await one.commit("x")
    assert await subjects(one) == ["workspace init"]


# -- commit messages -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "subject"),
    [
        ("  two\nlines\t here ", "two lines here"),
        ("a\x1b[31mb\x00c\u2028d\u202ee", "a [31mb c d e"),
        ("x" * 500, "x" * WORKSPACE_SUBJECT_CHARS),
        ("\ud800", "?"),
        ("# no comment", "# no comment"),
    ],
)
async def test_subject_is_one_line(one: Workspace, given_: str, subject: str) -> None:
    (one.folder / "a").write_text("1")
    made = await one.commit(given_, "b\x00\x1b\r\nc\n\n\n")
    assert made is not None
    assert (made.subject, made.body) == (subject, "b\nc")
    assert (await one.history(1)).commits == [made]


async def test_commit_without_a_subject_is_rejected(one: Workspace) -> None:
    with pytest.raises(InvalidRequest, match="needs a subject"):
        await one.commit(" \n\x00")


async def test_checkpoint_message_has_time_and_session(one: Workspace) -> None:
    (one.folder / "a").write_text("1")
    made = (await one.checkpoint(None, session_id="s\nagent=evil", user_id="ada")).commit
    assert made is not None
    assert made.subject == "checkpoint: manual"
    assert made.body == "manual checkpoint at 2023-11-14T22:13:22Z\nsession=s agent=evil\nagent=writer\nuser=ada"
    assert (await one.checkpoint("again")).commit is None
    (one.folder / "a").write_text("2")
    made = (await one.checkpoint("before\nthe move")).commit
    assert made is not None
    assert (made.subject, made.body.count("\n")) == ("checkpoint: before the move", 1)
