"""docs/releasing.md: the workflow that it shows can be parsed, has few rights, and runs targets that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
(BLOCK,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
WORKFLOW: dict[Any, Any] = yaml.safe_load(BLOCK)


def test_only_the_job_that_uploads_gets_a_token() -> None:
    """It runs no code of the repository, which could send the token elsewhere."""
    assert WORKFLOW["permissions"] == {}
    assert {name: job["permissions"] for name, job in WORKFLOW["jobs"].items()} == {
        "build": {"contents": "read"},
        "publish": {"id-token": "write"},
    }
    publish = WORKFLOW["jobs"]["publish"]
    assert publish["environment"] == "publish"
    assert [step["run"].split()[0] for step in publish["steps"] if "run" in step] == ["mkdir"]
    assert "secrets." not in BLOCK


def test_the_workflow_starts_with_a_tag_only() -> None:
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true


def test_the_targets_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`make ([a-z-]+)", PAGE))
    runs = [step["run"] for step in WORKFLOW["jobs"]["build"]["steps"] if "run" in step]
    named |= {target for line in runs if line.startswith("make ") for target in line.split()[1:]}
    assert {"trial", "reproduce", "sbom", "test"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
