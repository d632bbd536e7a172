#!/usr/bin/env python3
"""Draw docs/clipping.svg: three bad batches, with and without `guard.clip_gradients`.

python scripts/clipping_figure.py [FILE]

The model and the data are those of `python -m slurm_guard.training.example`, on one rank. In three batches
the targets are a thousand times too large. Takes a few seconds on one CPU; needs torch and nothing else.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slurm_guard.training.clipping import Clipper
from slurm_guard.training.example import WIDTH, Batches
from slurm_guard.training.rendezvous import RankPlace

ITERATIONS = 600
BAD = (200, 205, 210)
FACTOR = 1000.0
MAX_NORM = 1.0
MEAN_OF = 20
SEED = 1
COLOURS = {False: "#c2410c", True: "#0f766e"}
WORDS = {False: "without clipping", True: f"clip_gradients(parameters, {MAX_NORM:g})"}
WIDE, HIGH, LEFT, TOP, GAP = 460, 230, 62, 46, 96
"""Of one panel, in pixels, and around it."""

Optimizer = Callable[[Any], Any]


def adamw(parameters: Any) -> Any:
    """That of the example."""
    import torch

    return torch.optim.AdamW(parameters, lr=1e-3)


def sgd(parameters: Any) -> Any:
    """One whose steps grow with the gradient."""
    import torch

    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


OPTIMIZERS: dict[str, Optimizer] = {
    "AdamW, lr 1e-3, as in the example": adamw,
    "SGD, lr 0.1, momentum 0.9": sgd,
}


def train(optimizer_of: Optimizer, *, clips: bool) -> list[float]:
    """The loss of each iteration against the true targets, before its step."""
    import torch

    torch.manual_seed(SEED)
    batches = Batches(RankPlace(), SEED, ITERATIONS + 1)
    layers = (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH // 8))
    model = torch.nn.Sequential(*layers)
    optimizer, clipper, losses = optimizer_of(model.parameters()), Clipper(), []
    for iteration in range(1, ITERATIONS + 1):
        inputs, targets = batches[iteration]
        optimizer.zero_grad()
        outputs = model(inputs)
        losses.append(torch.nn.functional.mse_loss(outputs, targets).item())
        given = targets * FACTOR if iteration in BAD else targets
        torch.nn.functional.mse_loss(outputs, given).backward()
        if clips:
            clipper.clip(model.parameters(), MAX_NORM)
        optimizer.step()
    return losses


def smooth(losses: Sequence[float]) -> list[float]:
    """Means of the last MEAN_OF: single batches differ by more than what is to be seen."""
    spans = (losses[max(0, end - MEAN_OF) : end] for end in range(1, len(losses) + 1))
    return [sum(span) / len(span) for span in spans]


def draw_panel(title: str, curves: dict[bool, list[float]], left: float) -> list[str]:
    """One panel with a logarithmic axis of losses."""
    values = [value for curve in curves.values() for value in curve]
    low, high = math.log10(min(values)) - 0.02, math.log10(max(values)) + 0.02
    lines = [
        f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{title}</text>',
        f'<rect x="{left}" y="{TOP}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#999"/>',
    ]
    for iteration in BAD:
        x = left + WIDE * iteration / ITERATIONS
        lines.append(f'<path d="M{x:.1f} {TOP}v{HIGH}" stroke="#bbb" stroke-dasharray="2 3"/>')
    for part in range(5):
        y = TOP + HIGH * part / 4
        label = f"{10 ** (high - (high - low) * part / 4):.3g}"
        lines.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for iteration in range(0, ITERATIONS + 1, 100):
        x = left + WIDE * iteration / ITERATIONS
        lines.append(f'<text x="{x:.1f}" y="{TOP + HIGH + 18}" text-anchor="middle">{iteration}</text>')
    for clips, curve in curves.items():
        points = " ".join(
            f"{left + WIDE * i / ITERATIONS:.1f},{TOP + HIGH * (high - math.log10(value)) / (high - low):.1f}"
            for i, value in enumerate(curve, 1)
        )
        colour = COLOURS[clips]
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    return lines


def draw(panels: dict[str, dict[bool, list[float]]]) -> str:
    """The whole picture."""
    width, height = LEFT + len(panels) * (WIDE + GAP) - GAP + 20, TOP + HIGH + 76
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<g font-family="sans-serif" font-size="12" fill="#222">',
    ]
    for number, (title, curves) in enumerate(panels.items()):
        lines += draw_panel(title, curves, LEFT + number * (WIDE + GAP))
    y, x = TOP + HIGH + 50, float(LEFT)
    for clips, word in WORDS.items():
        lines.append(f'<path d="M{x} {y - 4}h24" stroke="{COLOURS[clips]}" stroke-width="3"/>')
        lines.append(f'<text x="{x + 30}" y="{y}">{word}</text>')
        x += 230
    note = f"loss over iterations, mean of {MEAN_OF}; dashed: batches with targets {FACTOR:g} times too large"
    lines.append(f'<text x="{x + 30}" y="{y}">{note}</text>')
    return "\n".join([*lines, "</g>", "</svg>", ""])


def main() -> None:
    """Train, draw, and say what is to be seen."""
    target = (
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "docs" / "clipping.svg"
    )
    import torch

    torch.set_num_threads(1)
    panels = {
        title: {clips: smooth(train(optimizer, clips=clips)) for clips in (False, True)}
        for title, optimizer in OPTIMIZERS.items()
    }
    target.write_text(draw(panels), encoding="utf-8")
    for title, curves in panels.items():
        before, peak, last = curves[False][BAD[0] - 2], max(curves[False][BAD[0] - 1 :]), curves[False][-1]
        kept, end = max(curves[True][BAD[0] - 1 :]), curves[True][-1]
        print(
            f"{title}: {before:.3f} before; without clipping up to {peak:.3g} and {last:.3f} at the end;",
            end=" ",
        )
        print(f"with it {kept:.3f} and {end:.3f}")


if __name__ == "__main__":
    main()
