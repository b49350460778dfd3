"""The command line: `holdfast serve | replay | chat | sessions | explain | state | keys | backup | doctor | config | …`.

Modules that all commands share:
command    the decorator `@command`: shared options, the open store, and the result as text or JSON
errors     the root command, which turns errors into one line and an exit code, and decides about colour
terminal   terminal output: sanitized text, JSON, tables, progress bars
prompt_bar draws prompts on a terminal: stacked bar, marks of messages

Each command is in the module of its subject:
sessions   everything about one session; session_text shows it; transfer has `export`, `import` and `verify`
serve      `serve`, `mcp`, `config`   backup     `backup`, `restore`                     index     `index`, `embeddings`
explain    `explain`, `facts`, `prompt`
doctor     one module for each group of checks

Slow modules are imported only inside the commands that need them, so `holdfast --help` is fast.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from holdfast import faults
from holdfast._version import __version__
from holdfast.cli import (
    backup,
    chat,
    doctor,
    explain,
    index,
    keys,
    memories,
    replay,
    search,
    serve,
    sessions,
    state,
    workspace,
)
from holdfast.cli.errors import QUIT, RootGroup

PROGRAM = "holdfast"

commands = RootGroup(
    name=PROGRAM,
    version=__version__,
    help="Session memory for LLM agents: keep the whole log, send the model a bounded working set.",
    commands=[
        serve.serve,
        replay.replay,
        chat.chat,
        serve.mcp,
        sessions.sessions,
        explain.explain,
        explain.prompt,
        search.search,
        memories.memories,
        state.state,
        explain.facts,
        workspace.workspace,
        index.embeddings,
        index.index,
        keys.keys,
        backup.backup,
        backup.restore,
        doctor.doctor,
        serve.config,
    ],
)
"""The root command. Tests call it through click's test runner."""


def main() -> Any:
    """Run the command that the arguments of the process (`sys.argv`) name, and exit the process.

    Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
    """
    faults.read_environment(os.environ)
    for stream in (sys.stdout, sys.stderr):
        # Without this, a character that the terminal's encoding lacks would end the command with an error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return commands.main(prog_name=PROGRAM)
    except KeyboardInterrupt:
        return QUIT
