"""The files of the pins: one with all hashes, and one with the text of each dialogue of `benchmarks/`."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.pinned.prompts import Prompt, Prompts, hash_prompt

FOLDER: Final = Path(__file__).parent
HASHES: Final = FOLDER / "hashes.json"
TEXTS: Final = FOLDER / "texts"
_SHORT: Final = 40
"""Characters up to which a text is not stored apart."""
Hashes = dict[str, dict[str, str]]
"""The hash of each prompt, by conversation and name."""


def read_hashes(path: Path = HASHES) -> Hashes:
    """Return all pinned hashes."""
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {
        name: {f"{group} {one}": value for group, line in groups.items() for one, value in _split(line)}
        for name, groups in stored.items()
    }


def write_hashes(hashes: Mapping[str, Mapping[str, str]], path: Path = HASHES) -> None:
    """Write all hashes: a line for each conversation, strategy and budget."""
    stored: dict[str, dict[str, str]] = {}
    for name in sorted(hashes):
        groups = stored.setdefault(name, {})
        for key, value in sorted(hashes[name].items()):
            group, _, one = key.rpartition(" ")
            groups[group] = f"{groups.get(group, '')} {one}:{value}".lstrip()
    path.write_text(json.dumps(stored, indent=0) + "\n", encoding="utf-8")


def _split(line: str) -> list[tuple[str, str]]:
    return [(one, value) for one, _, value in (part.partition(":") for part in line.split())]


def hash_all(prompts: Mapping[str, Prompt]) -> dict[str, str]:
    """Return the hash of each prompt."""
    return {key: hash_prompt(prompt) for key, prompt in prompts.items()}


def read_texts(name: str, folder: Path = TEXTS) -> Prompts:
    """Return the prompts of a dialogue as they were pinned."""
    path = _locate(name, folder)
    if not path.exists():
        return {}
    stored = json.loads(lzma.decompress(path.read_bytes()))
    texts, messages = stored["texts"], stored["messages"]

    def load(value: Any) -> Any:
        match value:
            case {"$": int(number)}:
                return texts[number]
            case dict():
                return {key: load(one) for key, one in value.items()}
            case list():
                return [load(one) for one in value]
        return value

    loaded = [load(message) for message in messages]
    return {
        key: {**prompt, "messages": [loaded[number] for number in prompt["messages"]]}
        if "messages" in prompt
        else prompt
        for key, prompt in stored["prompts"].items()
    }


def write_texts(name: str, prompts: Prompts, folder: Path = TEXTS) -> None:
    """Store the prompts of a dialogue, each text and each message once. A file that says the same is left alone."""
    if read_texts(name, folder) == prompts:
        return
    texts: dict[str, int] = {}
    messages: dict[str, int] = {}

    def save(value: Any) -> Any:
        match value:
            case str() if len(value) > _SHORT:
                return {"$": texts.setdefault(value, len(texts))}
            case dict():
                return {key: save(one) for key, one in value.items()}
            case list():
                return [save(one) for one in value]
        return value

    def number(message: Any) -> int:
        return messages.setdefault(json.dumps(save(message), ensure_ascii=False), len(messages))

    stored = {
        key: {**prompt, "messages": [number(one) for one in prompt["messages"]]} if "messages" in prompt else prompt
        for key, prompt in sorted(prompts.items())
    }
    whole = {"texts": list(texts), "messages": [json.loads(one) for one in messages], "prompts": stored}
    folder.mkdir(exist_ok=True)
    packed = lzma.compress(json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode(), preset=9)
    _locate(name, folder).write_bytes(packed)


def _locate(name: str, folder: Path) -> Path:
    return folder / f"{name.replace('/', '.')}.json.xz"
