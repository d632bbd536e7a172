"""Clipping: torch's own numbers, no update without a finite norm, and all ranks alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from state_file import read_state

from slurm_guard.errors import UsageError
from slurm_guard.policy.log.parser import LineParser
from slurm_guard.training.clipping import Clipper
from slurm_guard.training.state import write_state

RunRanks = Callable[[str, int, Path], "list[Any]"]


def parameter(gradient: float | None) -> Any:
    import torch

    held = torch.nn.Parameter(torch.ones(1))
    held.grad = None if gradient is None else torch.tensor([gradient])
    return held


def test_it_clips_as_torch_does() -> None:
    """The norm before is returned, as a number; gradients below the limit stay as they are."""
    clipper, held = Clipper(), [parameter(3.0), parameter(4.0), parameter(None)]
    assert clipper.clip(held, 1.0) == 5.0
    assert [held[0].grad.item(), held[1].grad.item()] == pytest.approx([0.6, 0.8], rel=1e-5)
    assert clipper.clip(iter(held), 10.0) == pytest.approx(1.0, rel=1e-5)
    assert held[0].grad.item() == pytest.approx(0.6, rel=1e-5)
    assert clipper.clip(held[0], math.inf) == pytest.approx(0.6, rel=1e-5)
    assert [clipper.take_norm(), clipper.take_norm()] == [pytest.approx(0.6, rel=1e-5), None]


def test_a_spike_tightens_the_limit_of_the_iterations_after_it() -> None:
    """The spike itself is clipped to what applied before."""
    clipper = Clipper()
    for _ in range(30):
        clipper.clip(parameter(1.0), 2.0)
    spike, later = parameter(100.0), parameter(100.0)
    clipper.clip(spike, 2.0)
    clipper.clip(later, 2.0)
    assert (spike.grad.item(), later.grad.item()) == pytest.approx((2.0, 1.0), rel=1e-5)
    assert clipper.share == 0.25


@pytest.mark.parametrize("gradient", [math.nan, math.inf, -math.inf])
def test_without_a_finite_norm_the_step_does_nothing(gradient: float) -> None:
    """Neither weights nor moments, not even the weight decay; the next one is as if it had not been."""
    import torch

    held, twin, clipper = [parameter(None), parameter(None)], [parameter(None), parameter(None)], Clipper()
    optimizer, other = (torch.optim.AdamW(own, lr=0.1, weight_decay=0.1) for own in (held, twin))
    for gradients in ((1.0, 2.0), (1.0, gradient), (2.0, 1.0)):
        for own, number in zip(held, gradients, strict=True):
            own.grad = torch.tensor([number])
        clipper.clip(held, 1.0)
        optimizer.step()
        if math.isfinite(gradients[1]):
            for own, number in zip(twin, gradients, strict=True):
                own.grad = torch.tensor([number])
            torch.nn.utils.clip_grad_norm_(twin, 1.0)
            other.step()
    assert clipper.skipped == 1
    assert [own.item() for own in held] == [own.item() for own in twin]


def test_the_word_of_skipped_updates_is_rare_and_no_record(caplog: pytest.LogCaptureFixture) -> None:
    """At 1, 2, 4 … of them; and the log reader takes it for no loss and no norm."""
    clipper = Clipper()
    for _ in range(100):
        clipper.clip(parameter(math.nan), 1.0)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 7
    assert "no update (64 so far)" in lines[-1]
    parser = LineParser()
    assert [parser.read_record(line.encode()) for line in lines] == [None] * 7


def train_with_scaler(clip: bool, **given: Any) -> tuple[Clipper, list[float], list[float]]:
    """Weights and scales of a training whose second iteration overflows."""
    import torch

    held, clipper = parameter(None), Clipper()
    optimizer = torch.optim.SGD([held], lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    weights, scales = [], []
    for factor in (1.0, math.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale((held * factor).sum()).backward()
        scaler.unscale_(optimizer)
        if clip:
            clipper.clip([held], 0.5, **({"scaler": scaler} if given else {}))
        else:
            torch.nn.utils.clip_grad_norm_([held], 0.5)
        scaler.step(optimizer)
        scaler.update()
        weights.append(held.item())
        scales.append(scaler.get_scale())
    return clipper, weights, scales


def test_overflow_is_left_to_the_loss_scaler() -> None:
    """It skips and lowers its scale as with torch alone; told of it, nothing is counted."""
    _, weights, scales = train_with_scaler(clip=False)
    assert scales == [8.0, 4.0, 4.0]
    told, *with_scaler = train_with_scaler(clip=True, told=True)
    untold, *without = train_with_scaler(clip=True)
    assert with_scaler == without == [weights, scales]
    assert (told.skipped, untold.skipped) == (0, 1)


def test_overflow_that_is_left_to_the_loss_scaler_is_no_news() -> None:
    """The guard would take it for trouble."""
    import torch

    clipper, scaler = Clipper(), torch.amp.GradScaler("cpu")
    clipper.clip(parameter(math.nan), 1.0, scaler=scaler)
    assert clipper.take_norm() is None
    clipper.clip(parameter(math.nan), 1.0, scaler=torch.amp.GradScaler("cpu", enabled=False))
    assert math.isnan(clipper.take_norm() or 0.0)


def test_the_state_survives_a_checkpoint(tmp_path: Path) -> None:
    """Saved and safely loaded, both go on alike."""
    first, second = Clipper(), Clipper()
    for norm in (*[1.0] * 30, 50.0, math.nan):
        first.clip(parameter(norm), 1.0)
    write_state({"clipper": first.state_dict()}, str(tmp_path))
    second.load_state_dict(read_state(tmp_path)["clipper"])
    assert second.state_dict() == first.state_dict()
    assert (second.share, second.skipped) == (0.5, 1)


@pytest.mark.parametrize(
    "saved",
    [
        {},
        {"share": "x", "norms": [], "skipped": 0},
        {"share": 7.0, "norms": [], "skipped": 0},
        {"share": 1.0, "norms": [math.nan], "skipped": 0},
        {"share": 1.0, "norms": 3, "skipped": 0},
    ],
)
def test_what_is_no_state_is_refused(saved: dict[str, Any]) -> None:
    """Nothing is taken from it."""
    clipper = Clipper()
    with pytest.raises(ValueError, match=r"no state of a Clipper|could not convert"):
        clipper.load_state_dict(saved)
    assert clipper.state_dict() == Clipper().state_dict()


@pytest.mark.parametrize("max_norm", [0.0, -1.0, math.nan])
def test_a_limit_that_is_none_is_refused(max_norm: float) -> None:
    """Before it ends in weights."""
    with pytest.raises(UsageError, match="give a positive number"):
        Clipper().clip(parameter(1.0), max_norm)


def test_parameters_of_fsdp1_are_refused() -> None:
    """One rank's norm is not the model's: clipping by it would tear the ranks apart."""
    import torch

    flat = type("FlatParameter", (torch.nn.Parameter,), {})
    with pytest.raises(UsageError, match="use FSDP2"):
        Clipper().clip([flat(torch.ones(1))], 1.0)


def test_ranks_of_ddp_skip_alike(run_ranks: RunRanks, tmp_path: Path) -> None:
    """The NaN of one is everybody's after the average: no update on any, and the weights stay the same."""
    first, second = run_ranks("clip_ranks.ddp", 2, tmp_path)
    assert first == second
    assert [index for index, norm in enumerate(first["norms"]) if norm == "nan"] == [2]
    assert first["skipped"] == 1
    assert first["weights"][2] == first["weights"][1]
    assert first["weights"][3] != first["weights"][2]


def test_shards_of_fsdp2_are_clipped_by_the_norm_of_the_whole(run_ranks: RunRanks, tmp_path: Path) -> None:
    """And a NaN in one rank's shard is no update on all."""
    for said in run_ranks("clip_ranks.fsdp2", 2, tmp_path):
        assert said["norm"] == pytest.approx(said["expected"], rel=1e-5)
        for clipped, wanted in zip(said["clipped"], said["wanted"], strict=True):
            assert clipped == pytest.approx(wanted, rel=1e-4)
        assert (said["bad"], said["left"], said["skipped"]) == ("nan", 0, 1)


def test_stages_of_a_pipeline_share_one_norm(run_ranks: RunRanks, tmp_path: Path) -> None:
    """The root of the sum of squares over the group, so that all clip, and skip, alike."""
    first, second = run_ranks("clip_ranks.stages", 2, tmp_path)
    assert (first["norm"], second["norm"]) == (5.0, 5.0)
    assert (first["clipped"], second["clipped"]) == pytest.approx((0.6, 0.8), rel=1e-5)
    assert [(said["bad"], said["left"]) for said in (first, second)] == [("nan", False)] * 2
