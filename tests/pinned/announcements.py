"""Find commits that changed pins and do not say so. The oldest commit of a shallow clone adds the file, so it is never one of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

from tests.pinned.dialogues import ROOT
from tests.pinned.files import HASHES
from tests.pinned.prompts import DIALECTS, STRATEGIES

_SHOWN: Final = 3
_SUBJECT: Final = re.compile(r"\b(?:pin|pins|pinned)\b", re.IGNORECASE)
_PROMPT: Final = re.compile(rf"\b(?:{'|'.join(STRATEGIES)})(?: \d+)? (?:{'|'.join((*DIALECTS, 'decisions'))})\b")


def list_unannounced(root: Path) -> list[str]:
    """Return the commits whose subject does not say that pins change, or whose body does not show three of the changed prompts."""
    path = str(HASHES.relative_to(ROOT))
    form = "--format=%x01%h%x00%s%x00%b%x00"
    log = subprocess.run(
        ["git", "-C", str(root), "log", "--diff-filter=M", "--numstat", form, "--", path],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = []
    for commit in log.stdout.split("\x01")[1:]:
        name, subject, body, changes = commit.split("\x00")
        wanted, shown = min(_SHOWN, int(changes.split()[0])), len(_PROMPT.findall(body))
        if not _SUBJECT.search(subject):
            found.append(f"{name} {subject}: the subject does not say that pins change")
        elif shown < wanted:
            found.append(f"{name} {subject}: the body shows {shown} of {wanted} prompts")
    return found
