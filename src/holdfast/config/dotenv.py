"""Read `.env` files. Their variables are only visible to the configuration."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from holdfast.limits import DOTENV_BYTES
from holdfast.sections import is_secret_name, mask_url

# Each part matches in one way only: otherwise a long line of spaces would take minutes.
_NAME: Final = re.compile(r"[^\S\n]*(?:export[^\S\n]+)?([A-Za-z_][A-Za-z0-9_]*)[^\S\n]*=[^\S\n]*", re.ASCII)
_QUOTED: Final = re.compile(r"""(?:'([^']*)'|"((?:[^"\\]|\\.)*)")""", re.DOTALL)
_COMMENT: Final = re.compile(r"(?:(?<=\s)|^)#.*", re.DOTALL)
_END: Final = re.compile(r"[^\S\n]*(?:\#[^\n]*)?(?:\n|\Z)")
_LINE: Final = re.compile(r"[^\n]*(?:\n|\Z)")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return True if the path is a file. If the user of this process may not search its folder, the result is False.

    A command that runs as another user with `sudo -u` often starts in such a folder.
    """
    return os.path.isfile(path)  # noqa: PTH113  # Path.is_file raises PermissionError


class Variables(dict[str, str]):
    """The environment variables, extended by variables from `.env` files.

    Attributes:
        places: for each variable from a file, by name: file and line, for example `.env:3`.
        mistakes: one message for each invalid line of the files, beginning with file and line.
        exposed: one message for each file with secrets that every user of the machine can read, by the resolved path of the file.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__(env)
        self.places: dict[str, str] = {}
        self.mistakes: list[str] = []
        self.exposed: dict[Path, str] = {}

    def describe(self, name: str) -> str:
        """Return a variable and where it is set, for example `DB_USER from environment`."""
        return f"{name} from {self.places.get(name, 'environment')}"

    def add_file(self, path: Path) -> None:
        """Add the variables of a `.env` file that are not set yet. A missing file is not a mistake."""
        if not is_file(path):
            return
        try:
            with path.open("rb") as file:
                data = file.read(DOTENV_BYTES + 1)
            text = data[:DOTENV_BYTES].decode("utf-8-sig").replace("\r\n", "\n")
        except OSError as error:
            self.mistakes.append(f"{path}: cannot be read: {error.strerror or error}")
            return
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            self.mistakes.append(f"{path}:{line}: not UTF-8")
            return
        if len(data) > DOTENV_BYTES:
            self.mistakes.append(f"{path}: larger than {DOTENV_BYTES >> 10} KiB")
        found, mistakes = parse_dotenv(text)
        self.mistakes += [f"{path}:{line}: {message}" for line, message in mistakes]
        for name, (line, value) in found.items():
            if name not in self:
                self[name] = value
                self.places[name] = f"{path}:{line}"
        if secrets := [name for name, (_, value) in found.items() if value and _is_secret(name, value)]:
            self._check_mode(path, secrets)

    def _check_mode(self, path: Path, secrets: list[str]) -> None:
        """Record a file with secrets if every user of the machine can read it.

        Read access of the file's group is accepted, because it may be the group of the server.
        """
        if os.name == "posix" and path.stat().st_mode & stat.S_IROTH:
            message = f"every user of this machine can read it, and it contains {secrets[0]}: chmod 600 {path}"
            self.exposed.setdefault(path.resolve(), f"{path}: {message}")


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or mask_url(value) != value


def load_variables(env: Mapping[str, str], folders: Iterable[Path]) -> Variables:
    """Return the environment variables, extended by the `.env` file of each folder.

    If a variable is set several times, the environment takes precedence, then the first folder. If `env` was extended by this function
    before, it is returned unchanged.
    """
    if isinstance(env, Variables):
        return env
    found = Variables(env)
    for path in dict.fromkeys(folder / ".env" for folder in folders):
        found.add_file(path)
    return found


def parse_dotenv(text: str) -> tuple[dict[str, tuple[int, str]], list[tuple[int, str]]]:
    """Return the variables of a `.env` file, and its mistakes.

        >>> parse_dotenv("export A=1  # one")[0]
        {'A': (1, '1')}

    A line is `NAME=value`. In double quotes, a backslash escapes as in Python, and a value may have several lines. In single quotes, every
    character is literal. `#` after a space starts a comment. Variables in values are not filled in.

    Returns:
        Line and value of each variable, by name, and the line and message of each mistake. If a name is set twice, the last value counts.
    """
    found: dict[str, tuple[int, str]] = {}
    mistakes = []
    at = 0
    while at < len(text):
        line = text.count("\n", 0, at) + 1
        if empty := _END.match(text, at):
            at = empty.end()
        elif variable := _parse_variable(text, at):
            name, value, at = variable
            found.pop(name, None)
            found[name] = line, value
        else:
            at = _find_line_end(text, at)
            mistakes.append((line, "expected NAME=value, NAME='value' or NAME=\"value\""))
    return found, mistakes


def _parse_variable(text: str, at: int) -> tuple[str, str, int] | None:
    """Parse the variable that starts at position `at`. Return its name, its value and the position of the next line, or None if invalid."""
    name = _NAME.match(text, at)
    if name is None:
        return None
    begin = name.end()
    if not text.startswith(("'", '"'), begin):
        end = _find_line_end(text, begin)
        return name[1], _COMMENT.sub("", text[begin:end].removesuffix("\n")).strip(), end
    quoted = _QUOTED.match(text, begin)
    rest = _END.match(text, quoted.end()) if quoted else None
    if quoted is None or rest is None:
        return None
    literal, escaped = quoted.groups()
    value = _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), escaped) if literal is None else literal
    return name[1], value, rest.end()


def _find_line_end(text: str, at: int) -> int:
    found = _LINE.match(text, at)
    assert found is not None
    return found.end()
