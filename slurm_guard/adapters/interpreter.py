"""The interpreter and the package that root's hooks run: whose they are, and their byte code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

from slurm_guard.adapters.installation import find_foreign

HOOK_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH that the hooks set themselves: slurmd gives none."""

_PACKAGE = Path(__file__).parents[1]
_ASK = "import sys; print(*sys.path, sep='\\n')"


def find_foreign_code() -> list[str]:
    """What of it somebody other than root may change: one sentence each, the worst first."""
    found: dict[str, str] = {}
    for what, path in _list_code():
        foreign = find_foreign(path)
        if foreign and foreign not in found:
            found[foreign] = f"{foreign} ({what}) is not root's alone: chown root, chmod go-w"
    return list(found.values())


def _list_code() -> list[tuple[str, Path]]:
    package = [Path(top, name) for top, _, names in os.walk(_PACKAGE) for name in names]
    # With -I, as the hooks: neither the environment nor the working directory adds to it.
    asked = subprocess.run(
        [sys.executable, "-I", "-c", _ASK],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    folders = [Path(line) for line in asked.stdout.splitlines() if os.path.exists(line)]
    libraries = [entry for folder in folders if folder.is_dir() for entry in folder.iterdir()]
    return [
        ("the interpreter", Path(sys.executable)),
        ("the package", _PACKAGE),
        *(("what Python imports from", folder) for folder in folders),
        *(("what Python imports", entry) for entry in libraries),
        *(("the package", path) for path in package if path.suffix != ".pyc"),
    ]


def compile_package() -> list[str]:
    """Compile the package, so that no hook has to; what could not be, one sentence each.

    A source that is no Python says so: the hooks would let every job in unchecked.
    """
    import compileall
    import py_compile

    compileall.compile_dir(str(_PACKAGE), quiet=2)
    bare = [path for path in sorted(_PACKAGE.rglob("*.py")) if not _is_compiled(path)]
    for path in bare:
        try:
            compile(path.read_bytes(), str(path), "exec")
        except SyntaxError as error:
            return [f"{path}:{error.lineno}: {error.msg}: the package is broken, install it again"]
        except (py_compile.PyCompileError, OSError, ValueError) as error:
            return [f"{path} cannot be compiled: {error}"]
    if bare:
        folder = Path(cache_from_source(str(bare[0]))).parent
        return [f"{folder} cannot be written: Python compiles {len(bare)} modules at every start of a hook"]
    return []


def _is_compiled(path: Path) -> bool:
    try:
        return os.stat(cache_from_source(str(path))).st_size > 0
    except OSError:
        return False


def find_program(name: str) -> str:
    """The full path of a program of the system that the hooks call; "" where there is none."""
    return shutil.which(name, path=HOOK_PATH) or shutil.which(name) or ""


def find_slurm_program(name: str) -> str:
    """The full path of a command of Slurm's; "" where there is none.

    The administrator's own comes first: a packaged Slurm may lie beside the one that runs.
    """
    return shutil.which(name) or shutil.which(name, path=HOOK_PATH) or ""
