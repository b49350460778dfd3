"""Generate docs/licences.md from the metadata of the installed distributions: `python scripts/licences.py`.

With `--check` it writes nothing and exits with 1 if the page is outdated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = Path(__file__).parents[1] / "docs" / "licences.md"
OURS = "holdfast-memory"
SPDX_NAMES = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""SPDX names by the names that distributions use."""
HEAD = """# Licences

Holdfast is under the MIT licence. Third-party software is installed separately. The only third-party data in the package are the token ranks of `o200k_base` and
`cl100k_base`, which OpenAI publishes with tiktoken (MIT); their notice is `src/holdfast/data/README.md`, and is part of the wheel's licences. The word lists, the
search weights and the labelled conversations were made for Holdfast.

The tables list each distribution that Holdfast needs, with the licence that the distribution states. `python scripts/licences.py` generates the tables from the
distributions that are installed for development on Linux. Most licences require only that you keep their notice. Those marked *(its own files)* also require
that these files stay under their licence if you change and redistribute them.

The command `holdfast embeddings install` installs the weights of all-MiniLM-L6-v2 (Apache-2.0).

"""
FRAMEWORKS = {
    "adk": ("google-adk", "Apache-2.0"),
    "agent-framework": ("agent-framework-core", "MIT"),
    "anthropic": ("anthropic", "Apache-2.0"),
    "langchain": ("langchain", "MIT"),
    "langgraph": ("langgraph", "MIT"),
    "llama-index": ("llama-index-core", "MIT"),
    "openai-agents": ("openai-agents", "MIT"),
    "pydantic-ai": ("pydantic-ai-slim", "MIT"),
    "strands": ("strands-agents", "Apache-2.0"),
}
"""Distribution and licence of each extra that is not in `all`. They are not installed for development, so the licences are not read."""
FRAMEWORKS_HEAD = """
## Installed with a framework's extra

These extras cannot be installed together. The table lists only what Holdfast itself requires. Each distribution installs further ones.

| extra | distribution | licence |
| --- | --- | --- |
"""
COPYLEFT = ("MPL", "LGPL", "GPL")


def find_licence(found: Distribution) -> str:
    """Return a distribution's licence: from its licence expression, its classifiers, or the first line of its licence text."""
    metadata = found.metadata.json
    if expression := metadata.get("license_expression"):
        return str(expression)
    classifiers = [one.rpartition(" :: ")[2] for one in metadata.get("classifier", ()) if one.startswith("License ::")]
    named = [SPDX_NAMES.get(one, one) for one in classifiers if one != "OSI Approved"]
    if named:
        return " AND ".join(sorted(named))
    text = str(metadata.get("license", "")).strip().partition("\n")[0]
    return SPDX_NAMES.get(text, text) or "not stated"


def collect_dependencies(name: str, extras: frozenset[str], seen: dict[str, Distribution]) -> None:
    """Add all installed dependencies of a distribution on this platform to `seen`, recursively."""
    for line in distribution(name).requires or []:
        wanted = Requirement(line)
        if wanted.marker and not any(wanted.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            continue
        found = canonicalize_name(wanted.name)
        if found in seen or found == OURS:
            continue
        try:
            seen[found] = distribution(found)
        except PackageNotFoundError:
            continue
        collect_dependencies(found, frozenset(wanted.extras), seen)


def format_rows(found: dict[str, Distribution], without: dict[str, Distribution]) -> Iterator[str]:
    """Yield a table row for each distribution in `found` that is not in `without`, by name."""
    for name in sorted(set(found) - set(without)):
        parts = find_licence(found[name]).split(" AND ")
        marked = [f"{part} (its own files)" if any(one in part for one in COPYLEFT) else part for part in parts]
        yield f"| {name} | {' AND '.join(marked)} |"


def list_extras() -> dict[str, set[str]]:
    """Return the names of the distributions that each extra requires."""
    requirements = [Requirement(line) for line in distribution(OURS).requires or ()]
    return {
        extra: {one.name for one in requirements if one.marker and one.marker.evaluate({"extra": extra})}
        for extra in distribution(OURS).metadata.get_all("Provides-Extra") or ()
    }


def format_page() -> str:
    """Return the page for the installed distributions."""
    base: dict[str, Distribution] = {}
    collect_dependencies(OURS, frozenset(), base)
    parts = [
        HEAD,
        "## Always installed\n\n| distribution | licence |\n| --- | --- |\n",
        "\n".join(format_rows(base, {})),
        "\n\n## Installed with an extra\n\n| extra | distribution | licence |\n| --- | --- | --- |\n",
    ]
    # Only the extras in `all`, because those of other frameworks cannot be installed together.
    extras = list_extras()
    for extra in sorted(name for name in extras if name != "all" and extras[name] <= extras["all"]):
        more: dict[str, Distribution] = {}
        collect_dependencies(OURS, frozenset({extra}), more)
        parts.extend(f"| `{extra}` {row}\n" for row in format_rows(more, base))
    parts.append(FRAMEWORKS_HEAD)
    parts.extend(f"| `{extra}` | {name} | {licence} |\n" for extra, (name, licence) in FRAMEWORKS.items())
    return "".join(parts)


def main() -> int:
    """Write or check the page; return the exit code."""
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != format_page())
    PAGE.write_text(format_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
