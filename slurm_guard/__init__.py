"""An emergency brake for distributed PyTorch training on Slurm."""

__version__ = "0.1.0"
