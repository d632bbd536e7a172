"""Slurm through pyslurm, the Python face of its C library: a child for every question."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, final

from slurm_guard.adapters import command
from slurm_guard.adapters.slurm_cli import SlurmCli
from slurm_guard.adapters.slurm_env import command_environment
from slurm_guard.errors import CommandFailed, CommandTimedOut, SlurmUnavailable
from slurm_guard.model.reading import JobReading, NodeReading, StepReading
from slurm_guard.policy import slurm_text

_CHILD = "slurm_guard.adapters.slurm_api_child"
# Without it the import would end the child where slurm.conf is amiss, before it could say a word.
_NO_SLURM_INIT = {"PYSLURM_DISABLE_AUTO_INIT": "1"}


@final
class SlurmApi:
    """The `Slurm` port over pyslurm: typed values instead of text. Written for 25.11; made by `choose_slurm`.

    Each question is a new interpreter with `timeout_s` as its deadline, since pyslurm has no deadlines of
    its own, ends its process where slurm.conf is amiss, and must match libslurm: what goes wrong there
    goes wrong there. That costs 80 ms a question where scontrol takes 6 ms, so it is for administrators'
    commands and no way of a job or a hook ever leads here.

    What it does not do well is asked of Slurm's commands (`SlurmCli`):

    - array elements and parts of heterogeneous jobs: pyslurm knows jobs by number alone, and the number of
      the last element is that of the whole array;
    - requeue: with its exclusion it must reach the controller in one go, before the caller is killed;
    - test_requeue: pyslurm has no --test-only;
    - read_batch_script: the commands tell a job without one from other refusals;
    - expand: needs no controller, and no interpreter either.
    """

    def __init__(
        self,
        timeout_s: float = 5.0,
        environ: Mapping[str, str] | None = None,
        *,
        interpreter: str = sys.executable,
    ) -> None:
        self._timeout_s = timeout_s
        self._environ = command_environment(os.environ if environ is None else environ) | _NO_SLURM_INIT
        self._interpreter = interpreter
        self._commands = SlurmCli(timeout_s, environ)

    def look(self) -> tuple[str, ...]:
        """What the installed pyslurm lacks of what is needed here, none where it reaches the controller.

        Raises:
            OutsideError: it cannot be imported, or does not reach it.
        """
        return tuple(self._ask("look"))

    def read_job(self, job_id: str) -> JobReading:
        """The job; array elements as ARRAYJOB_TASK."""
        found = self._ask("read_job", int(job_id)) if job_id.isdigit() else None
        return self._commands.read_job(job_id) if found is None else JobReading(**_with_nodes(found))

    def read_steps(self, job_id: str) -> tuple[StepReading, ...]:
        """The living steps of the job, batch and extern left out."""
        found = self._ask("read_steps", int(job_id)) if job_id.isdigit() else None
        if found is None:
            return self._commands.read_steps(job_id)
        return tuple(StepReading(**_with_nodes(step)) for step in found)

    def read_batch_script(self, job_id: str) -> str:
        """The batch script as submitted (by scontrol)."""
        return self._commands.read_batch_script(job_id)

    def expand(self, nodelist: str) -> tuple[str, ...]:
        """The node names of a Slurm node list (by scontrol); the controller is not asked."""
        return self._commands.expand(nodelist)

    def test_requeue(self, job_id: str, excluded: Iterable[str]) -> str:
        """Why the job could not run without these nodes (by sbatch); empty when it could."""
        return self._commands.test_requeue(job_id, excluded)

    def requeue(self, job_id: str, excluded: Iterable[str]) -> None:
        """Requeue the job with these nodes excluded (by one scontrol)."""
        self._commands.requeue(job_id, excluded)

    def exclude(self, job_id: str, nodes: Iterable[str]) -> None:
        """Make `nodes` the ExcNodeList of a pending job; a running one refuses."""
        if job_id.isdigit():
            self._ask("exclude", int(job_id), list(nodes))
        else:
            self._commands.exclude(job_id, nodes)

    def cancel_step(self, step_id: str, signal: str) -> None:
        """Signal every task of the step."""
        job_id, _, step = step_id.partition(".")
        if job_id.isdigit() and step.isdigit():
            self._ask("cancel_step", int(job_id), int(step), signal)
        else:
            self._commands.cancel_step(step_id, signal)

    def read_node(self, node: str) -> NodeReading:
        """The node's states and drain reason."""
        return _node(self._ask("read_node", node))

    def read_nodes(self) -> tuple[NodeReading, ...]:
        """All nodes of the cluster."""
        return tuple(map(_node, self._ask("read_nodes")))

    def drain_node(self, node: str, reason: str) -> None:
        """Drain the node (administrators only). A reason that stands there already is overwritten."""
        self._ask("drain_node", node, reason)

    def undrain_node(self, node: str) -> None:
        """Lift a drain, and a FAIL with it (administrators only)."""
        self._ask("undrain_node", node)

    def _ask(self, question: str, *words: Any) -> Any:
        argv = [self._interpreter, "-I", "-m", _CHILD]
        text = json.dumps([question, *words])
        try:
            answer = json.loads(command.run(argv, self._timeout_s, text=text, env=self._environ))
        except CommandTimedOut:
            raise SlurmUnavailable(f"pyslurm {question} gave no answer in {self._timeout_s:g} s") from None
        except CommandFailed as error:
            said = error.stderr.splitlines()[-1] if error.stderr else "no message"
            raise SlurmUnavailable(f"pyslurm ended its process (code {error.code}): {said}") from None
        except ValueError:
            raise SlurmUnavailable(f"pyslurm {question} gave no readable answer") from None
        if "broken" in answer:
            raise SlurmUnavailable(f"pyslurm {question} failed: {answer['broken']}")
        refusal = answer.get("refused")
        if refusal is None:
            return answer["value"]
        if slurm_text.parse_silence(refusal):
            raise SlurmUnavailable(f"pyslurm {question}: {refusal}")
        raise CommandFailed(["pyslurm", question, *map(str, words)], 1, refusal)


def _with_nodes(fields: dict[str, Any]) -> dict[str, Any]:
    lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
    return {**fields, **lists}


def _node(fields: dict[str, Any]) -> NodeReading:
    states = slurm_text.parse_states(fields["states"])
    return NodeReading(**{**_with_nodes(fields), "states": states})
