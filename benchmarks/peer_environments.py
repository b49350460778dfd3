"""Systems that have environments of their own, which `scripts/peers` creates."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".venv-peers"


def find_program(system: str, program: str = "python") -> Path | None:
    """Return the path of a program in the environment of a system, or None if the system is not installed."""
    path = FOLDER / system / "bin" / program
    return path if path.exists() else None


def format_missing(system: str) -> str:
    """Return a note for a table that lacks a system."""
    return f"{system} is not installed, so it was not measured: run `scripts/peers {system}`."


def read_version(system: str, distribution: str) -> str:
    """Return the installed version of a distribution in the environment of a system."""
    name = distribution.replace("-", "_")
    found = sorted((FOLDER / system).glob(f"lib/python*/site-packages/{name}-*.dist-info"))
    return found[-1].name.removesuffix(".dist-info").rpartition("-")[2] if found else "unknown"
