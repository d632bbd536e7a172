"""What training code imports. Nothing here imports torch by itself."""

from slurm_guard.training.heartbeat import heartbeat

__all__ = ["heartbeat"]
