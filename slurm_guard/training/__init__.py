"""What training code imports. Nothing here imports torch by itself."""

from typing import TYPE_CHECKING, Any

from slurm_guard.training.heartbeat import heartbeat

if TYPE_CHECKING:
    from slurm_guard.training.guard import Guard, ResumePoint

__all__ = ["Guard", "ResumePoint", "heartbeat"]


def __getattr__(name: str) -> Any:
    """Guard and ResumePoint, once they are asked for: a heartbeat alone needs nothing of checkpoints."""
    if name not in ("Guard", "ResumePoint"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from slurm_guard.training import guard

    return getattr(guard, name)
