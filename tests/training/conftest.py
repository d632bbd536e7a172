"""Real ranks, for the tests that need some."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, int, Path], list[Any]]]:
    """Run a function, as `shard_ranks.ring`, on so many ranks: what each of them says, None of one that died.

    Nothing is printed by them.
    """
    program = Path(__file__).with_name("gloo_ranks.py")
    noise = tmp_path_factory.mktemp("ranks") / "noise"
    with (
        noise.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        given, said = server.stdin, server.stdout

        def run(case: str, world: int, directory: Path) -> list[Any]:
            before = noise.stat().st_size
            order = {"case": case, "world": world, "directory": str(directory)}
            print(json.dumps(order), file=given, flush=True)
            answers: list[Any] = json.loads(said.readline())
            errors = [answer["error"] for answer in answers if isinstance(answer, dict) and "error" in answer]
            assert not errors, errors[0]
            assert noise.read_bytes()[before:].decode() == ""
            return answers

        yield run
        server.kill()
