"""Variables: those of the process, and under them those that `.env` files give to the configuration, and to nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from holdfast.limits import DOTENV_BYTES

NAME: Final = ".env"
# One step at a time, and none that could end in more than one place: else a long line of spaces takes minutes.
_NAME: Final = re.compile(r"[^\S\n]*(?:export[^\S\n]+)?([A-Za-z_][A-Za-z0-9_]*)[^\S\n]*=", re.ASCII)
_SPACE: Final = re.compile(r"[^\S\n]*")
_QUOTED: Final = re.compile(r"""(?:'([^']*)'|"((?:[^"\\]|\\.)*)")""", re.DOTALL)
_COMMENT: Final = re.compile(r"(?:(?<=\s)|^)#.*", re.DOTALL)
_NOTHING: Final = re.compile(r"[^\S\n]*(?:\#[^\n]*)?(?:\n|\Z)")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}


class Variables(dict[str, str]):
    """The environment with what `.env` files add to it.

    Attributes:
        places: where those stand that are not the process's own: `.env:3`, by name.
        mistakes: lines of the files that could not be read, each with its place.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__(env)
        self.places: dict[str, str] = {}
        self.mistakes: list[str] = []

    def add(self, path: Path) -> None:
        """Take in what a file says and nothing before it has said; one that is not there says nothing."""
        if not path.is_file():
            return
        try:
            with path.open("rb") as file:
                data = file.read(DOTENV_BYTES + 1)
            text = data[:DOTENV_BYTES].decode("utf-8-sig").replace("\r\n", "\n")
        except OSError as error:
            self.mistakes.append(f"{path}: cannot be read: {error.strerror or error}")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            self.mistakes.append(f"{path}:{line}: not UTF-8")
        else:
            if len(data) > DOTENV_BYTES:
                self.mistakes.append(f"{path}: larger than {DOTENV_BYTES >> 10} KiB")
            self._take(path, text)

    def told(self, name: str) -> str:
        """Where a variable is set, for whoever reads it: `environment`, or `.env:3`."""
        return self.places.get(name, "environment")

    def _take(self, path: Path, text: str) -> None:
        found, mistakes = parsed(text)
        self.mistakes += [f"{path}:{line}: {message}" for line, message in mistakes]
        for name, (line, value) in found.items():
            if name not in self:
                self[name] = value
                self.places[name] = f"{path}:{line}"


def parsed(text: str) -> tuple[dict[str, tuple[int, str]], list[tuple[int, str]]]:
    """The variables of a `.env` file with their lines, the last of each name; and its mistakes.

        >>> parsed("export A=1  # one")[0]
        {'A': (1, '1')}

    `NAME=value`; in double quotes a backslash escapes as in Python, and a value may have several lines; in single quotes
    everything stands for itself. `#` behind a space begins a comment. Nothing is filled in.
    """
    found: dict[str, tuple[int, str]] = {}
    mistakes = []
    at = 0
    while at < len(text):
        line = text.count("\n", 0, at) + 1
        if empty := _NOTHING.match(text, at):
            at = empty.end()
        elif said := _said(text, at):
            name, value, at = said
            found.pop(name, None)
            found[name] = line, value
        else:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end + 1
            mistakes.append((line, "expected NAME=value, NAME='value' or NAME=\"value\""))
    return found, mistakes


def _said(text: str, at: int) -> tuple[str, str, int] | None:
    """The variable that begins there: its name, its value, and where the next line begins."""
    name = _NAME.match(text, at)
    if name is None:
        return None
    space = _SPACE.match(text, name.end())
    begin = space.end() if space else name.end()
    if not text.startswith(("'", '"'), begin):
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        return name[1], _COMMENT.sub("", text[begin:end]).strip(), end + 1
    quoted = _QUOTED.match(text, begin)
    rest = _NOTHING.match(text, quoted.end()) if quoted else None
    if quoted is None or rest is None:
        return None
    literal, escaped = quoted.groups()
    value = _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), escaped) if literal is None else literal
    return name[1], value, rest.end()


def variables(env: Mapping[str, str], folders: Iterable[Path]) -> Variables:
    """The environment, and under it the `.env` of each folder, the first one's before the next one's."""
    if isinstance(env, Variables):
        return env
    found = Variables(env)
    for path in dict.fromkeys(folder / NAME for folder in folders):
        found.add(path)
    return found
