"""Second spellings of configuration keys, which are in documents that people follow. `SPELLINGS` and `llm` are all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.config.llms import LLM
from holdfast.config.model import Document, Sessions
from holdfast.config.yaml_tree import Node, Problems, Scalar, Section, join_path
from holdfast.sections import Settings

SPELLINGS: Final[Mapping[type[Settings], Mapping[str, str]]] = {
    Document: {"short_term": "sessions", "dreaming": "consolidation"},
    Sessions: {"session_ttl": "ttl", "max_history_turns": "max_messages"},
    LLM: {"vendor": "provider"},
}
"""For each section: the key that a second spelling means."""


def apply_spellings(tree: Section, problems: Problems) -> None:
    """Rename all keys of `tree` in their second spelling.

    The section `llm` is a single model. It becomes the entry `default` of `llms`.
    """
    _rename(tree, "", Document, problems)
    llm = tree.entries.pop("llm", None)
    if isinstance(llm, Section):
        llms = tree.entries.get("llms")
        if llms is None or _is_empty(llms):
            llms = tree.entries["llms"] = Section(llm.place, {})
        if isinstance(llms, Section):
            _put(llms, "llms.default", llm, problems)
    elif llm is not None:
        problems.add(llm.place, "expected a mapping, which is the entry `default` of `llms`")
    if sessions := tree.get_section("sessions"):
        _rename(sessions, "sessions", Sessions, problems)
    if models := tree.get_section("llms"):
        for name, model in models.entries.items():
            if isinstance(model, Section):
                _rename(model, f"llms.{name}", LLM, problems)


def _rename(section: Section, path: str, cls: type[Settings], problems: Problems) -> None:
    for spelling, key in SPELLINGS[cls].items():
        if spelling in section.entries:
            _put(section, join_path(path, key), section.entries.pop(spelling), problems)


def _put(section: Section, path: str, node: Node, problems: Problems) -> None:
    """Set the key of a section that has the path `path` in the model, or report a mistake if the key has a value already."""
    key = path.rpartition(".")[2]
    first = section.entries.get(key)
    if first is None or _is_empty(first):
        section.entries[key] = node
    elif not _is_empty(node):
        problems.add(node.place, f"the same as {path!r} in line {first.place.line}")


def _is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_empty
