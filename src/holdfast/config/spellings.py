"""Second spellings of configuration keys, which are in documents that people follow. `SPELLINGS` and `llm` are all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.config.convert import join_path
from holdfast.config.llms import LLM
from holdfast.config.model import Document, Sessions
from holdfast.config.yaml_tree import Node, Problems, Scalar, Section
from holdfast.sections import Settings

SPELLINGS: Final[Mapping[type[Settings], Mapping[str, str]]] = {
    Document: {"short_term": "sessions", "dreaming": "consolidation"},
    Sessions: {"session_ttl": "ttl", "max_history_turns": "max_messages"},
    LLM: {"vendor": "provider"},
}
"""For each section: the key that a second spelling means."""


def apply_spellings(tree: Section, problems: Problems) -> None:
    """Rename all keys of `tree` in their second spelling, and record in `problems` how the file spells them.

    The section `llm` is a single model. It becomes the entry `default` of `llms`.
    """
    _rename(tree, "", Document, problems)
    llm = tree.entries.pop("llm", None)
    if isinstance(llm, Section):
        llms = tree.entries.get("llms")
        if llms is None or _is_empty(llms):
            llms = tree.entries["llms"] = Section(llm.line, {})
        if isinstance(llms, Section):
            _put(llms, "llms.default", llm, "llm", problems)
    elif llm is not None:
        problems.add(llm.line, "llm", "expected a mapping, which is the entry `default` of `llms`")
    if sessions := tree.get_section("sessions"):
        _rename(sessions, "sessions", Sessions, problems)
    if models := tree.get_section("llms"):
        for name, model in models.entries.items():
            if isinstance(model, Section):
                _rename(model, f"llms.{name}", LLM, problems)


def _rename(section: Section, path: str, cls: type[Settings], problems: Problems) -> None:
    for spelling, key in SPELLINGS[cls].items():
        if spelling in section.entries:
            node = section.entries.pop(spelling)
            _put(section, join_path(path, key), node, problems.spell(join_path(path, spelling)), problems)


def _put(section: Section, path: str, node: Node, spelt: str, problems: Problems) -> None:
    """Set a key of a section, or report a mistake if the key has a value already.

    Args:
        section: the section.
        path: path of the key in the model.
        node: the value.
        spelt: path of the value in the file.
        problems: records the mistake, or the file's spelling of the path.
    """
    key = path.rpartition(".")[2]
    first = section.entries.get(key)
    if first is None or _is_empty(first):
        section.entries[key] = node
        problems.written[path] = spelt
    elif not _is_empty(node):
        problems.add(node.line, "", f"{spelt}: the same as {path!r} in line {first.line}")


def _is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_empty
