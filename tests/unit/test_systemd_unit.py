"""The systemd unit of the documentation: valid, hardened, and in agreement with the defaults."""

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.config.loader import load_settings

UNIT = Path(__file__).parents[2] / "docs" / "holdfast@.service"
needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")


def read_unit() -> dict[str, list[str]]:
    """Return the values of each key of the unit, in order."""
    values: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            values.setdefault(key, []).append(value)
    return values


def run_analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `systemd-analyze`; it needs no running systemd for these commands."""
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def instance(tmp_path: Path) -> Path:
    """Write the unit as the instance 8377, with a program that exists on every machine."""
    path = tmp_path / "holdfast@8377.service"
    path.write_text(UNIT.read_text().replace("/opt/holdfast/bin/holdfast", "/bin/true"))
    return path


def test_server_is_started_again_for_as_long_as_it_fails() -> None:
    unit = read_unit()

    assert unit["Restart"] == ["on-failure"]
    assert unit["StartLimitIntervalSec"] == ["0"]


def test_server_has_time_to_end_running_replies() -> None:
    (timeout,) = read_unit()["TimeoutStopSec"]

    assert int(timeout) > load_settings({}, env={}).gateway.shutdown_grace


def test_port_of_the_instance_is_the_port_of_the_server() -> None:
    assert "HOLDFAST_PORT=%i" in read_unit()["Environment"]
    assert load_settings({}, env={"HOLDFAST_PORT": "8378"}).gateway.port == 8378


@needs_systemd
def test_unit_is_valid(instance: Path) -> None:
    outcome = run_analyze("verify", str(instance))

    assert (outcome.returncode, str(instance) in outcome.stderr) == (0, False), outcome.stderr


@needs_systemd
def test_exposure_is_low(instance: Path) -> None:
    outcome = run_analyze("security", "--offline=true", "--threshold=20", str(instance))
    if "unrecognized option" in outcome.stderr:
        pytest.skip("systemd is older than 250")

    assert outcome.returncode == 0, outcome.stdout[-300:]
