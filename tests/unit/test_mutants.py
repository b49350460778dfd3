"""The faults that `make mutants` puts into a function are listed and can be executed."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import FunctionType

import pytest

from scripts.mutants.bench import apply_fault
from scripts.mutants.faults import Fault, Source
from scripts.mutants.targets import ROOT, TARGETS, Target

TEXT = '''
    """A page."""
    from __future__ import annotations

    TABLE = 3


    def judged(number: int, *, most: int = 10, words: tuple[str, ...] = ()) -> str | None:
        """Judge it."""
        assert number != 99, "what is never asked"
        if number < 0 and not words:
            raise ValueError(f"{number} is less than 0")
        for word in words:
            if word == "stop":
                break
        return "small" if number <= most else f"large: {number - most}"


    class Shown:
        def __repr__(self) -> str:
            return "shown"
'''


@pytest.fixture
def source(tmp_path: Path) -> Source:
    file = tmp_path / "page.py"
    file.write_text(textwrap.dedent(TEXT), encoding="utf-8")
    return Source(file)


def load_function(source: Source) -> FunctionType:
    """Return a new instance of the file's function."""
    names: dict[str, FunctionType] = {}
    exec(compile(source.path.read_text(encoding="utf-8"), str(source.path), "exec"), names)
    return names["judged"]


def faults(source: Source) -> dict[str, Fault]:
    """Return the faults by the line with the fault."""
    return {source.format_diff(fault).partition("\n+ ")[2]: fault for fault in source.faults}


def test_the_faults_of_a_function(source: Source) -> None:
    """Annotations, docstrings, `assert`, error texts and code outside functions get no faults."""
    assert list(faults(source)) == [
        "def judged(number: int, *, most: int=11, words: tuple[str, ...]=()) -> str | None:",
        "if number < 0 or not words:",
        "if number <= 0 and (not words):",
        "if number >= 0 and (not words):",
        "if number < 1 and (not words):",
        "if number < 0 and words:",
        "pass",
        "if word != 'stop':",
        "if word == 'stop~':",
        "continue",
        "return None",
        "return 'small' if number < most else f'large: {number - most}'",
        "return 'small' if number > most else f'large: {number - most}'",
        "return 'small~' if number <= most else f'large: {number - most}'",
        "return 'small' if number <= most else f'large: {number + most}'",
    ]


def test_a_fault_can_be_executed(source: Source) -> None:
    """A fault replaces code or a parameter's default of an existing function, and leaves the file unchanged."""
    function, found = load_function(source), faults(source)
    assert (function(10), function(11)) == ("small", "large: 1")
    code = source.compile_fault(found["return 'small' if number < most else f'large: {number - most}'"])
    default = source.compile_fault(next(fault for line, fault in found.items() if "most: int=11" in line))
    assert code is not None
    assert default is not None
    apply_fault(function, default)
    assert function(11) == "small"
    apply_fault(function, code)
    assert function(11) == "large: 0"
    assert load_function(source)(11) == "large: 1"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_pattern_of_a_target_finds_files(target: Target) -> None:
    """A file that was renamed must not disappear from mutation testing."""
    assert [pattern for pattern in (*target.source, *target.tests) if not any(ROOT.glob(pattern))] == []
    assert target.find_sources()
    assert target.find_tests()
