"""Rounds of hooks, each kind once a round, in turns that begin with another kind each time.

hook_rounds.py RUNS KIND…

Runs as root in a mount namespace of its own, where it lays out a node. Prints JSON: for each kind a list of
wall_ms, cpu_ms (all descendants included) and said_ms (what it printed, if anything).
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from slurm_guard.adapters.site_kit import render_hook
from slurm_guard.config.compiled import compile_site
from slurm_guard.config.site import load_site
from slurm_guard.hooks.place import Place
from slurm_guard.policy.site_kit import plan_hooks

JOB = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_UID": "12345",
    "SLURM_JOB_GID": "12345",
    "SLURM_JOB_USER": "ann",
    "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7",
    "SLURMD_NODENAME": "n1",
}
PR_SET_CHILD_SUBREAPER = 36
ROOT = Path("/")
PLACE = Place()


def lay_out() -> dict[str, list[str]]:
    """The node's files, of which the machine sees nothing; the hooks by their kind."""
    for name in ("run", "var/lib", "var/log"):
        subprocess.run(["mount", "-t", "tmpfs", "slurm-guard", ROOT / name], check=True)
    etc = ROOT / "run/etc"
    shutil.copytree(ROOT / "etc", etc, symlinks=True, ignore=shutil.ignore_patterns("slurm-guard"))
    subprocess.run(["mount", "--bind", etc, ROOT / "etc"], check=True)
    for path in (PLACE.settings, PLACE.jobs.parent, PLACE.state, PLACE.log.parent):
        path.mkdir()
    site = PLACE.settings / "site.toml"
    site.write_text("[prolog]\nsnapshot_s = 3600\n")
    PLACE.compiled.write_text(compile_site(PLACE.settings))
    PLACE.expected_gpus.write_text("8\n")
    settings, scripts = load_site(site), {}
    for hook in plan_hooks(settings):
        file = render_hook(
            hook, interpreter=sys.executable, timeout="/usr/bin/timeout", log=settings.log, slurm_conf=""
        )
        path = ROOT / file.path
        path.parent.mkdir(exist_ok=True)
        path.write_text(file.text)
        path.chmod(0o755)
        scripts[hook.program] = [str(path)]
    return scripts


def list_kinds(scripts: dict[str, list[str]]) -> dict[str, list[str]]:
    """What is run for each kind."""
    here, nothing = Path(__file__).parent, PLACE.settings / "nothing.sh"
    nothing.write_text("#!/bin/sh\nexit 0\n")
    nothing.chmod(0o755)
    python = [sys.executable]
    return {
        "fresh": scripts["prolog"],
        "alone": scripts["prolog"],
        "sweep": scripts["sweep"],
        "probe": [*python, "-I", str(here / "probe_once.py"), "fork"],
        "probe_new": [*python, "-I", str(here / "probe_once.py"), "new"],
        "check": [str(Path(sys.executable).with_name("slurm-guard")), "node", "check"],
        "python": [*python, "-c", "pass"],
        "isolated": [*python, "-I", "-c", "pass"],
        "shell": [str(nothing)],
    }


def measure(argv: list[str]) -> dict[str, float]:
    """One run, until all of its descendants have ended."""
    began_s = time.perf_counter()
    child = subprocess.Popen(
        argv, env={**os.environ, **JOB}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    said = child.stdout.read()
    _, code, used = os.wait4(child.pid, 0)
    took_s = time.perf_counter() - began_s
    child.returncode = os.waitstatus_to_exitcode(code)
    cpu_s = used.ru_utime + used.ru_stime
    while True:
        try:
            used = os.wait4(-1, 0)[2]  # what its parent did not wait for comes to us
        except ChildProcessError:
            break
        cpu_s += used.ru_utime + used.ru_stime
    if child.returncode:
        sys.exit(f"{argv}: code {child.returncode}")
    number = said.strip()
    said_ms = float(number) if number[:1].isdigit() else 0.0
    return {"wall_ms": took_s * 1000, "cpu_ms": cpu_s * 1000, "said_ms": said_ms}


def main(runs: int, kinds: list[str]) -> None:
    """Take the rounds and print them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    argv = list_kinds(lay_out())
    measure(argv["sweep"])
    snapshot = PLACE.snapshot.read_bytes()
    for kind in kinds:
        measure(argv[kind])  # byte code, page cache
    PLACE.log.write_text("")
    told: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for number in range(runs):
        for kind in (*kinds[number % len(kinds) :], *kinds[: number % len(kinds)]):
            PLACE.snapshot.unlink(missing_ok=True)
            if kind == "fresh":
                PLACE.snapshot.write_bytes(snapshot)
            told[kind].append(measure(argv[kind]))
    lines = PLACE.log.read_text().splitlines()
    swept = sum("in the sweep" in line for line in lines)
    admitted = sum("admitted: " in line for line in lines)
    wanted = (runs * ("fresh" in kinds), runs * sum(kind in kinds for kind in ("fresh", "alone")))
    if (swept, admitted) != wanted or len(lines) != admitted:
        sys.exit("the hooks did not do what is measured: " + "\n".join(lines[-5:]))
    print(json.dumps(told))


main(int(sys.argv[1]), sys.argv[2:])
