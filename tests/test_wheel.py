"""The wheel that users install: built, put into a fresh environment, toured as its pages print it.

The quick test borrows the dependencies of this environment; the long one (`make test-wheel`)
installs the real ones, for every Python of this machine that Lamina supports.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

import lamina

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TOUR = """
import re, sys
from pathlib import Path
import lamina

assert Path(lamina.__file__).is_relative_to(sys.prefix), lamina.__file__
pages = "".join(Path(each).read_text() for each in sys.argv[1:])
blocks = re.findall(r"```python\\n(.*?)```", pages, re.DOTALL)
assert len(blocks) >= 6
for block in (*blocks, *blocks):
    exec(compile(block, "the tour", "exec"), {})
print("toured", lamina.__version__)
"""


def run(*words: str | Path, **more: Any) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, **more
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the sources: a build leaves nothing in the tree."""
    pytest.importorskip("hatchling", reason="builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "lamina"
    copy.mkdir()
    for name in ("src", "examples"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*build, "--disable-pip-version-check", "--wheel-dir", folder, copy)
    return next(folder.glob("*.whl"))


def fresh(folder: Path, python: Path | str = sys.executable) -> Path:
    """Makes an environment; returns its Python."""
    run(python, "-m", "venv", "--without-pip", folder)
    return folder / "bin" / "python"


def install(python: Path, *what: str | Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run(*pip, "--disable-pip-version-check", *what)


def tour(python: Path, folder: Path, **more: str) -> str:
    folder.mkdir()
    (folder / "tour.py").write_text(TOUR)
    left_out = {"PYTHONPATH", "LAMINA_ARCHIVE", "LAMINA_API_KEY"}
    variables = {name: value for name, value in os.environ.items() if name not in left_out}
    pages = ROOT / "README.md", ROOT / "docs" / "start.md"
    asked = [python, "-W", "error", "tour.py", *pages]
    return run(*asked, cwd=folder, env=variables | more)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with the wheel, and with dependencies that it borrows."""
    python = fresh(tmp_path_factory.mktemp("fresh") / "environment")
    install(python, "--no-deps", wheel)
    inside = sysconfig.get_paths(vars=dict.fromkeys(("base", "platbase"), str(python.parents[1])))
    borrowed = Path(inside["purelib"], "borrowed.pth")
    borrowed.write_text(sysconfig.get_paths()["purelib"])  # a path alone: nothing editable in it
    return python


def test_the_tour_runs_from_a_wheel_in_a_fresh_environment(python: Path, tmp_path: Path) -> None:
    assert tour(python, tmp_path / "user").endswith(f"toured {lamina.__version__}\n")
    assert run(python.with_name("lamina"), "--version") == f"lamina {lamina.__version__}\n"


def test_the_fixtures_are_there_where_the_wheel_is(python: Path, tmp_path: Path) -> None:
    """Also while pytest rewrites every assertion of the distribution that brings a plugin."""
    (tmp_path / "test_program.py").write_text(
        "def test_both(lamina_store, lamina_server):\n"
        "    for store in (lamina_store, lamina_server.connect()):\n"
        "        with store:\n"
        "            store.create_topic('t')\n"
        "            assert store.append('t', [b'value']).base_offset == 0\n"
        "            assert sum(batch.num_rows for batch in store.scan('t')) == 1\n"
    )
    asked = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert "1 passed" in run(*asked, "test_program.py", cwd=tmp_path, env=variables)


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        about = next(name for name in names if name.endswith("/METADATA"))
        text = content.read(about).decode()
        hooks = content.read(about.replace("METADATA", "entry_points.txt")).decode()
    assert wheel.name == f"lamina-{lamina.__version__}-py3-none-any.whl"
    assert "License-Expression: Apache-2.0" in text
    assert any(name.endswith("licenses/LICENSE") for name in names)
    for version in PYTHONS[:3]:
        assert f"Classifier: Programming Language :: Python :: {version}\n" in text
    assert re.search(r"^Keywords: ", text, re.MULTILINE)
    assert re.search(r"^Project-URL: Documentation, ", text, re.MULTILINE)
    assert {"spark", "demo"} <= set(re.findall(r"^Provides-Extra: (.+)$", text, re.MULTILINE))
    assert "lamina = lamina.cli.main:main" in hooks
    assert "[pytest11]\nlamina = lamina.pytest_plugin" in hooks
    assert "lamina/py.typed" in names
    assert "lamina/server/console/static/index.html" in names
    assert not [name for name in names if name.startswith("tests/")]


def test_the_demo_asks_for_no_tool_of_developers() -> None:
    """A clone should not download gigabytes before it shows anything."""
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo: \$\(DEMO\)$", makefile, re.MULTILINE)
    (recipe,) = re.findall(r"^\$\(DEMO\):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert "'.[demo]'" in recipe
    assert "dev" not in recipe
    assert "--quiet" not in recipe, "a person waits for it"


def interpreter(version: str) -> str | None:
    """A Python of a version: of the system, or of pyenv."""
    found = [str(each) for each in Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for each in (*sorted(found, reverse=True), shutil.which(f"python{version}")):
        asked = [each, "-c", "import venv"]  # a shim of pyenv may have nothing behind it
        if each and not subprocess.run(asked, capture_output=True, check=False).returncode:
            return each
    return None


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("version", PYTHONS)
def test_the_tour_runs_with_its_real_dependencies(
    wheel: Path, tmp_path: Path, version: str
) -> None:
    found = interpreter(version)
    if found is None:
        pytest.skip(f"there is no Python {version} here")
    python = fresh(tmp_path / "environment", found)
    install(python, wheel)
    cache = {"LAMINA_KERNEL_CACHE": str(tmp_path / "kernels"), "HOME": str(tmp_path)}
    assert tour(python, tmp_path / "user", **cache).endswith(f"toured {lamina.__version__}\n")
