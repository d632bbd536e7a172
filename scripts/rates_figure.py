#!/usr/bin/env python3
"""Draw docs/rates.svg: a training that crashes, and what the two rates of checkpoints leave to do again.

python scripts/rates_figure.py [FILE]

Runs `python -m slurm_guard.training.example` on one rank until it crashes, and again until it ends. What is
drawn is what was saved, kept and resumed from. Each save is waited for: the picture is the same on any disk.
Takes half a minute on one CPU; needs torch and nothing else.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ITERATIONS = 280
RING_EVERY = 10
MILESTONE_EVERY = 100
CRASH = 188
WIDE, HIGH, LEFT, TOP = 760, 300, 62, 30
"""Of the panel, in pixels, and around it."""
RING, MILESTONE, FAULT, GHOST = "#0f766e", "#1d4ed8", "#c2410c", "#999"

CHILD = """
import slurm_guard.training.milestone as milestone, slurm_guard.training.ring as ring
from slurm_guard.training.example import main
from slurm_guard.training.guard import Guard

def wait(guard, i, iteration=Guard.iteration, **more):
    iteration(guard, i, **more)
    guard.finish()

def tell(kind, write):
    def told(*args, **named):
        written = write(*args, **named)
        if getattr(written, "rank", None) is None:
            print("saved", kind, written.iteration, flush=True)
        return written
    return told

Guard.iteration = wait
ring.write_unit = tell("ring", ring.write_unit)
milestone.write_milestone = tell("milestone", milestone.write_milestone)
main()
"""


@dataclass
class Run:
    """One run of the training, read from its output: iterations by number."""

    iterations: list[int] = field(default_factory=list)
    ring: list[int] = field(default_factory=list)
    milestones: list[int] = field(default_factory=list)
    resumed: int = 0
    kept: list[int] = field(default_factory=list)


def train(root: Path, fault: str = "") -> Run:
    """Run it once; with a fault it must end of that."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environment |= {
        "SLURM_JOB_ID": "1",
        "SLURM_CLUSTER_NAME": "c",
        "SLURM_GUARD_RING_DIR": str(root / "ring"),
        "SLURM_GUARD_STATE_DIR": str(root / "state"),
        "SLURM_RESTART_COUNT": "0" if fault else "1",
    }
    words = [f"--iterations={ITERATIONS}", f"--ring-every={RING_EVERY}", "--iteration-s=0"]
    words += [f"--milestone-every={MILESTONE_EVERY}", *([f"--fault={fault}"] if fault else [])]
    argv = [sys.executable, "-c", CHILD, *words]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if (done.returncode != 0) != bool(fault):
        raise SystemExit(f"the training ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    run = Run()
    for line in done.stdout.splitlines():
        if found := re.fullmatch(r"iteration (\d+) loss \S+", line):
            run.iterations.append(int(found[1]))
        elif found := re.fullmatch(r"saved (ring|milestone) (\d+)", line):
            (run.ring if found[1] == "ring" else run.milestones).append(int(found[2]))
        elif found := re.fullmatch(r"resumed from ring .* at iteration (\d+)", line):
            run.resumed = int(found[1])
    run.kept = sorted(int(path.name[-10:]) for path in (root / "ring" / "c-1").glob("iteration-*"))
    return run


def draw(first: Run, second: Run) -> str:
    """Iterations that are done over iterations that were computed: what is computed twice is a step back."""
    crash, last = first.iterations[-1], max(first.milestones)
    end = crash + (ITERATIONS - last)

    def at(computed: float, iteration: float) -> tuple[float, float]:
        return LEFT + WIDE * computed / end, TOP + HIGH * (1 - iteration / (ITERATIONS * 1.06))

    def path(points: list[tuple[float, float]], colour: str, more: str = "") -> str:
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        return f'<polyline points="{text}" fill="none" stroke="{colour}" {more}/>'

    def word(x: float, y: float, text: str, more: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{text}</text>'

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE + 24} {TOP + HIGH + 76}">',
        f'<rect width="{LEFT + WIDE + 24}" height="{TOP + HIGH + 76}" fill="white"/>',
        '<g font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect x="{LEFT}" y="{TOP}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#999"/>',
    ]
    for iteration in range(0, ITERATIONS + 1, 50):
        lines.append(word(LEFT - 6, at(0, iteration)[1] + 4, str(iteration), 'text-anchor="end"'))
    for computed in range(0, end + 1, 50):
        lines.append(word(at(computed, 0)[0], TOP + HIGH + 18, str(computed), 'text-anchor="middle"'))
    again = second.resumed
    shift = crash - again
    ghost: list[tuple[float, float]] = [(crash, crash), (crash, last), (end, ITERATIONS)]
    lines.append(path(ghost, GHOST, 'stroke-width="1.4" stroke-dasharray="4 4"'))
    done: list[tuple[float, float]] = [
        (0, 0),
        (crash, crash),
        (crash, again),
        (shift + ITERATIONS, ITERATIONS),
    ]
    lines.append(path(done, "#222", 'stroke-width="1.4"'))
    for run, before in ((first, 0), (second, shift)):
        for iteration in run.ring:
            x, y = at(before + iteration, iteration)
            fill = RING if iteration in run.kept else "white"
            lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{RING}"/>')
        for iteration in run.milestones:
            x, y = at(before + iteration, iteration)
            lines.append(f'<rect x="{x - 6:.1f}" y="{y - 6:.1f}" width="12" height="12" fill="{MILESTONE}"/>')
    x, y = at(crash, crash)
    cross = f"M{x - 6:.1f} {y - 6:.1f}l12 12m0 -12l-12 12"
    lines.append(f'<path d="{cross}" stroke="{FAULT}" stroke-width="2.5"/>')
    lines.append(word(x, y - 14, f"crash in iteration {crash + 1}", f'text-anchor="end" fill="{FAULT}"'))
    lines.append(word(x + 12, at(0, again)[1] + 20, f"{shift} iterations again", f'fill="{RING}"'))
    lines.append(
        word(x + 12, at(0, last)[1] + 18, f"from the milestone it would be {crash - last}", f'fill="{GHOST}"')
    )
    foot = TOP + HIGH + 40
    lines.append(word(LEFT + WIDE / 2, foot, "iterations that were computed", 'text-anchor="middle"'))
    lines.append(word(LEFT, TOP - 10, "iterations that are done"))
    lines += draw_legend(foot + 24)
    return "\n".join([*lines, "</g>", "</svg>", ""])


def draw_legend(y: float) -> list[str]:
    """What the signs are."""
    return [
        f'<circle cx="{LEFT + 6}" cy="{y - 4}" r="4" fill="{RING}" stroke="{RING}"/>',
        f'<text x="{LEFT + 18}" y="{y}">ring checkpoint, every {RING_EVERY} iterations</text>',
        f'<circle cx="{LEFT + 256}" cy="{y - 4}" r="4" fill="white" stroke="{RING}"/>',
        f'<text x="{LEFT + 268}" y="{y}">no longer there at the crash, or at the end</text>',
        f'<rect x="{LEFT + 530}" y="{y - 10}" width="12" height="12" fill="{MILESTONE}"/>',
        f'<text x="{LEFT + 548}" y="{y}">milestone, every {MILESTONE_EVERY}</text>',
    ]


def main() -> None:
    """Train, crash, train on, draw, and say what is to be seen."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "docs" / "rates.svg"
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        first = train(root, f"crash@{CRASH}")
        second = train(root)
    target.write_text(draw(first, second), encoding="utf-8")
    crash, last = first.iterations[-1], max(first.milestones)
    print(f"crashed after {crash}, kept {first.kept}, resumed at {second.resumed}; the milestone is {last}")


if __name__ == "__main__":
    main()
