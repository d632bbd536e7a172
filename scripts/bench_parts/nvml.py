"""The fake NVML of the tests, for whatever asks GPUs here."""

from __future__ import annotations

from bench_parts.site import SCRIPTS, Site, run

GPUS = 8


def build_nvml(site: Site) -> dict[str, str]:
    """Variables with which a program finds 8 healthy GPUs."""
    folder = site.work / "nvml"
    folder.mkdir(exist_ok=True)
    source = SCRIPTS.parent / "tests" / "fake_nvml" / "nvml.c"
    name = "libnvidia-ml.so.1"
    run(["cc", "-O2", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name), str(source)])
    (folder / "state").write_text(f"count {GPUS}\ndriver 570.86.15\n")
    return {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML": str(folder / "state")}
