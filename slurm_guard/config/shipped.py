"""What comes with the package beside its modules: templates and the site's configuration."""

from __future__ import annotations

from pathlib import Path


def find_shipped(name: str) -> Path:
    """The folder `templates` or `site-config`."""
    package = Path(__file__).parents[1]
    inside = package / name  # of an installed wheel; else beside the package, in a checkout
    return inside if inside.is_dir() else package.parent / name
