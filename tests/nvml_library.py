"""The fake NVML library, built for a test."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = Path(__file__).parent / "fake_nvml" / "nvml.c"


def build_nvml(folder: Path, *defines: str) -> Path:
    """`folder` with libnvidia-ml.so.1 in it: for LD_LIBRARY_PATH, with a state file named by FAKE_NVML.

    Without that variable the state is the file `state` beside the library.
    """
    target = folder / "libnvidia-ml.so.1"
    soname = "-Wl,-soname,libnvidia-ml.so.1"
    subprocess.run(
        [
            "cc",
            *(f"-D{name}" for name in defines),
            "-shared",
            "-fPIC",
            "-Wall",
            soname,
            "-o",
            target,
            _SOURCE,
        ],
        check=True,
    )
    return folder
