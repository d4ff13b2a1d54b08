"""What is installed: the wheel has all that it needs and nothing that is the shop's."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import outbox_relay

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel of the work tree, built from a copy so that no build folder is left in it."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "celeryconfig.py"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "outbox_relay", source / "outbox_relay", ignore=shutil.ignore_patterns("__pycache__"))
    (source / "tests").mkdir()
    (source / "tests/__init__.py").touch()
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    (path,) = target.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_has_all_modules_migrations_and_the_typing_marker(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if name.startswith("outbox_relay/")}
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "outbox_relay").rglob("*")
        if path.is_file() and path.suffix in {".py", ".mako", ".typed"}
    }
    assert packed == wanted
    assert "outbox_relay/py.typed" in packed
    assert any(name.startswith("outbox_relay/store/migrations/versions/") for name in packed)


def test_the_wheel_has_nothing_that_is_the_shops_or_the_developers(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"outbox_relay", f"outbox_relay-{outbox_relay.__version__}.dist-info"}


def test_the_wheel_brings_its_license_and_celerys_plug_in(wheel: zipfile.ZipFile) -> None:
    assert any(name.endswith("LICENSE") for name in wheel.namelist())
    (entry_points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    parser = configparser.ConfigParser()
    parser.read_string(wheel.read(entry_points).decode())
    assert dict(parser["celery.commands"]) == {"outbox": "outbox_relay.cli:outbox"}


def test_the_extra_for_redis_brings_what_kombu_needs_for_it() -> None:
    """Which is more than the driver: a version of kombu also imports packaging there."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    assert any(line.startswith("kombu[redis]") for line in parser["options.extras_require"]["redis"].split())


def test_every_requirement_has_a_lower_bound_and_no_upper_one() -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    lines = "\n".join([parser["options"]["install_requires"], *parser["options.extras_require"].values()]).split()
    for line in lines:
        assert line.startswith("outbox-relay[") or re.fullmatch(r"[\w.-]+(\[\w+\])?>=[\d.]+", line), line


def test_importing_the_package_does_not_load_a_database_driver() -> None:
    program = "import sys, outbox_relay; print(sorted({'psycopg', 'alembic', 'rich', 'redis'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
