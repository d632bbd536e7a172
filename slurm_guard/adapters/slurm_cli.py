"""Slurm through its own commands, in text that every release since 22.05 prints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import final

from slurm_guard.adapters import command
from slurm_guard.adapters.slurm_env import command_environment
from slurm_guard.errors import CommandFailed, CommandTimedOut, SlurmUnavailable, UsageError
from slurm_guard.model.reading import JobReading, NodeReading, StepReading
from slurm_guard.policy import slurm_text

_WORD = re.compile(r"[A-Za-z0-9_.:\[\],+-]+")
_NOT_TRAINING = frozenset({"batch", "extern"})


@final
class SlurmCli:
    """The `Slurm` port over scontrol, scancel and sbatch.

    `timeout_s` is the deadline of each command (left alone they retry a silent controller for 18 s
    and more). The environment is the process's own unless one is given; Slurm's option variables in
    it are never passed on. `bin_dir` is the folder of Slurm's commands, for whoever has no PATH (hooks).
    """

    def __init__(
        self, timeout_s: float = 5.0, environ: Mapping[str, str] | None = None, *, bin_dir: str = ""
    ) -> None:
        self._timeout_s = timeout_s
        self._bin_dir = bin_dir
        self._environ = command_environment(os.environ if environ is None else environ)
        self._expanded: dict[str, tuple[str, ...]] = {}

    def read_job(self, job_id: str) -> JobReading:
        """The job; array elements as ARRAYJOB_TASK."""
        fields = self._read_job_fields(job_id)
        return JobReading(
            job_id=slurm_text.parse_job_id(fields),
            state=fields.get("JobState", ""),
            requeue=fields.get("Requeue") == "1",
            restarts=int(fields.get("Restarts") or 0),
            nodes=self.expand(fields.get("NodeList", "")),
            excluded=self.expand(fields.get("ExcNodeList", "")),
            batch=fields.get("BatchFlag", "0") not in ("", "0"),
            end_time_s=slurm_text.parse_time_s(fields.get("EndTime", "")),
            user_id=slurm_text.parse_user_id(fields.get("UserId", "")),
            start_time_s=slurm_text.parse_time_s(fields.get("StartTime", "")),
        )

    def read_steps(self, job_id: str) -> tuple[StepReading, ...]:
        """The living steps of the job, batch and extern left out; their ids begin with `job_id` as given."""
        try:
            text = self._run("scontrol", "show", "step", _word(job_id), "-o")
        except CommandFailed as error:
            if error.stderr:
                raise
            return ()  # an allocation without a step yet: scontrol says so on stdout
        shown = [slurm_text.parse_fields(line) for line in text.splitlines() if line.strip()]
        owners = {fields.get("StepId", "").partition(".")[0] for fields in shown}
        # Asked by its number an array element is shown by its name, the last one with all the others.
        owner = job_id if owners <= {job_id} else slurm_text.parse_job_id(self._read_job_fields(job_id))
        steps = ((*fields.get("StepId", "").partition("."), fields) for fields in shown)
        return tuple(
            self._step(f"{job_id}.{number}", fields)
            for of_job, _, number, fields in steps
            if of_job == owner and number not in _NOT_TRAINING
        )

    def read_batch_script(self, job_id: str) -> str:
        """The batch script as submitted."""
        argv = ("scontrol", "write", "batch_script", _word(job_id), "-")
        script = self._run(*argv)
        if not script.strip():  # its exit code is 0 all the same
            raise CommandFailed(list(argv), 1, f"job {job_id} has no batch script")
        return script

    def expand(self, nodelist: str) -> tuple[str, ...]:
        """The node names of a Slurm node list; the controller is not asked."""
        if not re.search(r"[\[,]", nodelist):
            return (nodelist,) if nodelist else ()
        if nodelist not in self._expanded:
            names = self._run("scontrol", "show", "hostnames", _word(nodelist))
            self._expanded[nodelist] = tuple(names.split())
        return self._expanded[nodelist]

    def test_requeue(self, job_id: str, excluded: Iterable[str]) -> str:
        """Why the job could not run without these nodes; empty when it could.

        `excluded` is the whole list that the job would get. Nodes that are busy now, by this very job
        too, count as nodes that it could have.
        """
        options = slurm_text.plan_submission(self._read_job_fields(job_id))
        script = self.read_batch_script(job_id)
        without = f"--exclude={','.join(map(_word, excluded))}"
        try:
            self._run("sbatch", "--test-only", *options, without, text=script)
        except CommandFailed as error:
            lines = error.stderr.splitlines() or [str(error)]
            return re.sub(r"^(sbatch: error|allocation failure): ", "", lines[-1])
        return ""

    def requeue(self, job_id: str, excluded: Iterable[str]) -> None:
        """Requeue the job and, in the same controller session, make `excluded` its ExcNodeList.

        Nothing of the job may live long after it. Where the caller is the batch process itself and handles
        SIGTERM the exclusion came through 15 of 15 times; below a batch shell, which dies at once and takes
        all with it, 11 of 15: look at ExcNodeList when the job starts again. With no `excluded` the list
        stays as it is.

        Raises:
            CommandFailed: `argv[1]` says what was refused: `requeue`, or `update` alone (it is requeued).
        """
        job, nodes = _word(job_id), ",".join(map(_word, excluded))
        orders = f"requeue {job}\n" + (f"update jobid={job} ExcNodeList={nodes}\n" if nodes else "")
        try:
            # One process for both: after the first the second may have a few milliseconds.
            self._run("scontrol", text=orders)
        except CommandFailed as error:
            requeue, exclusion = slurm_text.parse_requeue_refusal(error.stderr)
            if requeue or not exclusion:
                raise CommandFailed(["scontrol", "requeue", job], error.code, requeue) from None
            raise CommandFailed(["scontrol", "update", f"jobid={job}"], error.code, exclusion) from None

    def exclude(self, job_id: str, nodes: Iterable[str]) -> None:
        """Make `nodes` the ExcNodeList of a pending job; a running one refuses."""
        names = ",".join(map(_word, nodes))
        self._run("scontrol", "update", f"jobid={_word(job_id)}", f"ExcNodeList={names}")

    def cancel_step(self, step_id: str, signal: str) -> None:
        """Signal every task of the step."""
        self._run("scancel", f"--signal={_word(signal)}", _word(step_id))

    def read_node(self, node: str) -> NodeReading:
        """The node's states and drain reason."""
        argv = ["scontrol", "show", "node", _word(node), "-o"]
        try:
            return slurm_text.parse_node(self._run(*argv).rstrip("\n"))
        except CommandFailed as error:
            # It says so on stdout.
            raise CommandFailed(argv, error.code, error.stderr or f"node {node} not found") from None

    def read_nodes(self) -> tuple[NodeReading, ...]:
        """All nodes of the cluster."""
        lines = self._run("scontrol", "show", "node", "-o").split("\n")
        # A comment may have lines of its own.
        return tuple(slurm_text.parse_node(line) for line in lines if line.startswith("NodeName="))

    def count_gpus(self, node: str) -> int:
        """How many GPUs the node has by its Gres."""
        line = self._run("scontrol", "show", "node", _word(node), "-o")
        return slurm_text.count_gpus(slurm_text.parse_fields(line).get("Gres", ""))

    def drain_node(self, node: str, reason: str) -> None:
        """Drain the node (administrators only). A reason that stands there already is overwritten."""
        self._run("scontrol", "update", f"nodename={_word(node)}", "state=drain", f"reason={reason}")

    def undrain_node(self, node: str) -> None:
        """Lift a drain, and a FAIL with it (administrators only)."""
        self._run("scontrol", "update", f"nodename={_word(node)}", "state=undrain")

    def read_config(self) -> str:
        """What the controller says of its configuration, as text."""
        return self._run("scontrol", "show", "config")

    def _read_job_fields(self, job_id: str) -> dict[str, str]:
        text = self._run("scontrol", "show", "job", _word(job_id), "-o")
        found = [slurm_text.parse_fields(line) for line in text.splitlines() if line.strip()]
        # The number of an array or heterogeneous job shows all of its parts.
        mine = [
            fields for fields in found if job_id in (fields.get("JobId"), slurm_text.parse_job_id(fields))
        ]
        if not mine:
            raise CommandFailed(
                ["scontrol", "show", "job", job_id], 1, f"job {job_id} is not among those shown"
            )
        return mine[0]

    def _step(self, step_id: str, fields: dict[str, str]) -> StepReading:
        host, pid = slurm_text.parse_srun(fields.get("SrunHost:Pid", ""))
        return StepReading(
            step_id=step_id,
            name=fields.get("Name", ""),
            state=fields.get("State", ""),
            nodes=self.expand(fields.get("NodeList", "")),
            srun_host=host,
            srun_pid=pid,
        )

    def _run(self, program: str, *words: str, text: str = "") -> str:
        argv = [os.path.join(self._bin_dir, program), *words]
        try:
            return command.run(argv, self._timeout_s, text=text, env=self._environ)
        except CommandTimedOut as error:
            raise SlurmUnavailable(str(error)) from None
        except CommandFailed as error:
            if slurm_text.parse_silence(error.stderr):
                raise SlurmUnavailable(str(error)) from None
            raise


def _word(text: str) -> str:
    """The text, if it is one word to scontrol: its interactive form has no quoting."""
    if not _WORD.fullmatch(text) or text.startswith("-"):
        raise UsageError(f"{text!r} is no id or name of Slurm's")
    return text
