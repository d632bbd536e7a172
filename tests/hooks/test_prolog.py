"""The prolog whole: the real program in slurmd's environment, over a fake NVML and a scontrol that tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml_library import build_nvml

from slurm_guard.config.compiled import compile_site
from slurm_guard.hooks.__main__ import BROKEN, REFUSED
from slurm_guard.hooks.baseline import read_baseline
from slurm_guard.hooks.ledger import Ledger
from slurm_guard.hooks.place import Place
from slurm_guard.hooks.record import read_record, write_record
from slurm_guard.hooks.snapshot import GpuCount, write_snapshot
from slurm_guard.model.health import (
    Finding,
    Fitness,
    GpuReading,
    HealthClass,
    HealthReading,
    Level,
    NodeVerdict,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts the spool: only root can")

NOBODY = 65534
PROGRAM = """
import os, sys
from pathlib import Path
from slurm_guard.hooks.__main__ import main
from slurm_guard.hooks.place import Place
sys.exit(main([sys.argv[1]], os.environ, Place(Path(sys.argv[2]))))
"""
SCONTROL = """#!/bin/sh
cd "$(dirname "$0")" || exit 1
[ -e silent ] && exec /bin/sleep 30
echo "$*" >>said
if [ "$1" = update ]; then
    for word; do :; done
    echo "Reason=${word#reason=} [root@$(/bin/date -u +%Y-%m-%dT%H:%M:%S)]" >reason-n1
    exit
fi
for node in n1 n2 n3; do
    [ "$3" = -o ] || [ "$3" = "$node" ] || continue
    state=IDLE
    [ -e "reason-$node" ] && state=IDLE+DRAIN
    echo "NodeName=$node State=$state Partitions=p $(/bin/cat "reason-$node" 2>/dev/null)"
done
"""
OFF = "[generic.check]\n" + "".join(
    f'{name} = "off"\n'
    for name in ("host_scratch", "host_shm", "host_clock", "host_mount", "host_port", "xid")
)


class Node:
    """A node under a root of its own, with two healthy GPUs."""

    def __init__(self, root: Path, library: Path) -> None:
        self.root = root
        self.place = Place(root)
        self.library = library
        self.state = root / "nvml"
        self.bin = root / "bin"
        self.bin.mkdir()
        (self.bin / "scontrol").write_text(SCONTROL)
        (self.bin / "scontrol").chmod(0o755)
        self.place.settings.mkdir(parents=True)
        self.install()
        self.set_gpus()

    def install(self, toml: str = "", checks: str = "") -> None:
        """What `site install` leaves; `toml` is the site's own."""
        (self.place.settings / "site.toml").write_text(toml)
        (self.place.settings / "gpu-profiles.toml").write_text(OFF + checks)
        text = compile_site(self.place.settings, str(self.bin / "scontrol"))
        self.place.compiled.write_text(text)

    def set_gpus(self, *faults: str) -> None:
        self.state.write_text("\n".join(["count 2", "driver 570.86.15", *faults, ""]))

    def sweep(self, fitness: Fitness) -> None:
        """Leave a snapshot of just now."""
        reading = HealthReading((GpuReading(0, uuid="GPU-swept", ecc_corrected=3),))
        off = Finding("persistence", 0, Level.WARN, HealthClass.APPLICATION, "off", "on", "it is off")
        found = (off,) if fitness is Fitness.WARN else ()
        write_snapshot(self.place, NodeVerdict(fitness, None, found), reading)

    def start(self, hook: str = "prolog", *flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the hook for job 12 of nobody, who has GPU 0; an empty text leaves a variable out."""
        slurmd = {
            "SLURM_JOB_ID": "12",
            "SLURM_JOB_UID": str(NOBODY),
            "SLURM_JOB_GID": str(NOBODY),
            "SLURMD_NODENAME": "n1",
            "SLURM_JOB_GPUS": "0",
            **environ,
        }
        fake = {"LD_LIBRARY_PATH": str(self.library), "FAKE_NVML": str(self.state)}
        return subprocess.run(
            [sys.executable, "-I", *flags, "-c", PROGRAM, hook, str(self.root)],
            env={**fake, **{name: value for name, value in slurmd.items() if value}},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def read_log(self) -> list[str]:
        """The lines of the log, without their stamps."""
        if not self.place.log.exists():
            return []
        return [line.partition("] ")[2] for line in self.place.log.read_text().splitlines()]

    def read_calls(self) -> list[str]:
        """What scontrol was asked."""
        said = self.bin / "said"
        return said.read_text().splitlines() if said.exists() else []


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the fake library."""
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node(tmp_path: Path, library: Path) -> Iterator[Node]:
    """A node that was installed, with healthy GPUs."""
    node = Node(tmp_path, library)
    yield node
    if os.path.ismount(node.place.jobs):
        subprocess.run(["umount", "--lazy", node.place.jobs], check=True)


LOST = "1.ret 15"


def test_healthy_node_admits_and_asks_slurm_nothing(node: Node) -> None:
    """There is a spool, a baseline, and one line in the log; stdout and stderr stay empty."""
    done = node.start()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert node.read_log() == ["prolog: job 12: admitted: healthy"]
    assert node.read_calls() == []
    assert node.place.spool("12").stat().st_uid == NOBODY
    baseline = read_baseline(node.place, "12")
    assert baseline
    assert [(gpu.uuid, gpu.minor, gpu.remap_failed) for gpu in baseline.gpus] == [
        ("GPU-00000000", 0, False),
        ("GPU-00000001", 1, False),
    ]


def test_fresh_sweep_saves_the_probe(node: Node) -> None:
    """A GPU that was lost since then is found by its watchdog, or by the next sweep."""
    node.sweep(Fitness.WARN)
    node.set_gpus(LOST)
    assert node.start().returncode == 0
    assert node.read_log() == ["prolog: job 12: admitted: warn in the sweep 0 s ago: persistence"]
    baseline = read_baseline(node.place, "12")
    assert baseline
    assert baseline.gpus == (GpuCount(0, "GPU-swept", ecc_corrected=3),)


def test_bad_sweep_never_refuses_by_itself(node: Node) -> None:
    """The prolog looks for itself."""
    node.sweep(Fitness.UNFIT)
    assert node.start().returncode == 0
    assert node.read_log() == ["prolog: job 12: admitted: healthy"]


def test_old_sweep_is_not_believed(node: Node) -> None:
    """The site has none that are fresh enough."""
    node.install("[prolog]\nsnapshot_s = 0\n")
    node.sweep(Fitness.HEALTHY)
    node.set_gpus(LOST)
    assert node.start().returncode == REFUSED


def test_lost_gpu_refuses_and_drains_with_our_own_reason(node: Node) -> None:
    """Also where it is not this job's. The reason names check, GPU, class and job."""
    node.set_gpus(LOST)
    assert node.start().returncode == REFUSED
    unfit, drained, refused = node.read_log()
    assert (
        unfit
        == "prolog: job 12: unfit: GPU 1: gpu_lost (reboot): the GPU is lost: GPU is lost (NVML code 15)"
    )
    assert drained.startswith("drained n1: slurm-guard: gpu_lost gpu=1 class=reboot job=12 id=")
    assert refused == "prolog: job 12: refused: the node is drained"
    updates = [call for call in node.read_calls() if call.startswith("update")]
    assert updates == [f"update nodename=n1 state=drain reason={drained.removeprefix('drained n1: ')}"]


def test_reason_names_what_the_driver_asks_for_a_reset_for(node: Node) -> None:
    """Who reads it looks for the memory; the log has the count and the driver's word."""
    node.set_gpus("1.recovery_action 1", "1.ecc_sram 2")
    assert node.start().returncode == REFUSED
    unfit, drained, _ = node.read_log()
    assert "GPU 1: ecc_sram (reset): 2 uncorrectable errors in SRAM" in unfit
    assert unfit.endswith("; the driver asks to reset the GPU")
    assert drained.startswith("drained n1: slurm-guard: ecc_sram gpu=1 class=reset job=12 id=")


def test_reason_of_a_human_stands(node: Node) -> None:
    """The node is drained already: nothing is written."""
    (node.bin / "reason-n1").write_text("Reason=fan [ann@2026-01-01T00:00:00]\n")
    node.set_gpus(LOST)
    assert node.start().returncode == REFUSED
    assert node.read_log()[-1] == "prolog: job 12: refused: the node was out of service already"
    assert not any(call.startswith("update") for call in node.read_calls())


def test_silent_controller_does_not_save_the_job(node: Node) -> None:
    """slurmd drains the node by itself, in words of its own."""
    (node.bin / "silent").touch()
    node.set_gpus(LOST)
    assert node.start().returncode == REFUSED
    assert node.read_log()[-1] == "prolog: job 12: refused: whether the node is drained is unknown"


def test_enough_drained_nodes_admit_and_call_a_person(node: Node) -> None:
    """A fault that looks the same on every node is rather one of ours."""
    stamp = subprocess.run(
        ["date", "-u", "+%FT%T"], capture_output=True, text=True, check=True
    ).stdout.strip()
    said = f"Reason=slurm-guard: gpu_lost gpu=1 class=reboot job=3 id=00ab12cd [root@{stamp}]\n"
    (node.bin / "reason-n3").write_text(said)
    program = node.bin / "page"
    program.write_text(f'#!/bin/sh\necho "$1" >{node.root}/paging; mv {node.root}/paging {node.root}/paged\n')
    program.chmod(0o755)
    node.install(f'[hooks]\npage = "{program}"\n')
    node.set_gpus(LOST)
    assert node.start().returncode == 0
    assert node.read_log()[-1] == "prolog: job 12: admitted all the same, enough nodes are drained"
    assert not any(call.startswith("update") for call in node.read_calls())
    deadline = time.monotonic() + 20
    while not (node.root / "paged").exists():  # nobody waits for that program
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "GPU 1: gpu_lost (reboot)" in (node.root / "paged").read_text()


def test_refusal_ends_the_word_of_the_sweep(node: Node) -> None:
    """The next job is not let in by a snapshot that says otherwise."""
    node.install("[prolog]\nsnapshot_s = 0\n")
    node.sweep(Fitness.HEALTHY)
    node.set_gpus(LOST)
    node.start()
    assert not node.place.snapshot.exists()


@pytest.mark.parametrize(("gpus", "code"), [("1", REFUSED), ("0", 0), ("", 0)])
def test_memory_in_use_counts_on_own_gpus_only(node: Node, gpus: str, code: int) -> None:
    """A neighbour's job has the others. On its own, what does not go within a second refuses the job."""
    node.set_gpus("1.used_mib 40000")
    assert node.start(SLURM_JOB_GPUS=gpus).returncode == code


def test_memory_of_a_job_with_the_same_gpu_is_its_own(node: Node) -> None:
    """Shards and MPS: the second job comes while the first one works."""
    assert node.start(SLURM_JOB_ID="11").returncode == 0
    node.set_gpus("0.used_mib 40000")
    assert node.start(SLURM_JOB_ID="12").returncode == 0


@pytest.mark.parametrize(("word", "code"), [("admit", 0), ("refuse", REFUSED)])
def test_node_that_cannot_be_judged(node: Node, word: str, code: int) -> None:
    """It admits unless the site says otherwise; either way nobody drains it for that."""
    node.install(f'[prolog]\nunjudged = "{word}"\n')
    node.place.expected_gpus.write_text("many")
    assert node.start().returncode == code
    assert "not judged: " in node.read_log()[0]
    assert node.read_calls() == []


@pytest.mark.parametrize("text", [None, "", "{", '{"schema":0}'])
def test_node_without_settings_admits(node: Node, text: str | None) -> None:
    """Missing or broken, and whatever the site wanted; one line says what mends it."""
    node.set_gpus(LOST)
    node.place.compiled.unlink()
    if text is not None:
        node.place.compiled.write_text(text)
    assert node.start().returncode == 0
    (line,) = node.read_log()
    assert line.startswith("prolog: nothing is judged, the job starts: ")
    assert line.endswith("run slurm-guard site install")


def test_broken_table_admits_where_the_site_refuses_the_unjudged(node: Node) -> None:
    """An upgrade gone wrong drains no cluster."""
    node.install('[prolog]\nunjudged = "refuse"\n')
    broken = {**json.loads(node.place.compiled.read_text()), "profiles": "none"}
    node.place.compiled.write_text(json.dumps(broken))
    node.set_gpus(LOST)
    assert node.start().returncode == 0
    assert "site install" in node.read_log()[0]


@pytest.mark.parametrize("number", ["", "12_3", "$(reboot)", "../12"])
def test_job_without_a_number_starts(node: Node, number: str) -> None:
    """There is one line, and nothing is made for it."""
    assert node.start(SLURM_JOB_ID=number).returncode == 0
    assert len(node.read_log()) == 1
    assert not node.place.jobs.exists()


def test_words_of_the_user_reach_nobody(node: Node) -> None:
    """Work directory, comment and the like with all that a shell would obey; a user without a home."""
    evil = "$(touch /tmp/slurm-guard-owned)`id`'\"\n; reboot\x1b[2J"
    node.set_gpus(LOST)
    done = node.start(
        SLURM_JOB_WORK_DIR=evil,
        SLURM_JOB_COMMENT=evil,
        SLURM_JOB_USER=evil,
        SLURM_JOB_PARTITION=evil,
        SPANK_PATH=evil,
        HOME="/none",
    )
    assert (done.returncode, done.stdout, done.stderr) == (REFUSED, "", "")
    assert len(node.read_log()) == 3
    assert "reboot\\x" not in "".join(node.read_log() + node.read_calls())
    assert not Path("/tmp/slurm-guard-owned").exists()


def test_requeued_job_is_another_attempt(node: Node) -> None:
    """With the same number, on the same node, with an empty spool."""
    node.start()
    first = read_baseline(node.place, "12")
    (node.place.spool("12") / "claim").write_text("of the first")
    node.start()
    second = read_baseline(node.place, "12")
    assert first
    assert second
    assert first.attempt != second.attempt
    assert list(node.place.spool("12").iterdir()) == []


def test_job_starts_without_a_spool(node: Node) -> None:
    """Where the tmpfs has turned read-only there is one more line."""
    node.start()
    subprocess.run(["mount", "-o", "remount,ro", node.place.jobs], check=True)
    assert node.start(SLURM_JOB_ID="13").returncode == 0
    assert node.read_log()[1].startswith("prolog: job 13: there is no spool, the job starts without: ")
    assert node.read_log()[2] == "prolog: job 13: admitted: healthy"


HUNG = "it may be only slow, a sweep waits for 25 s and decides"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("init.sleep_s 50", "no answer of the GPU driver in 1."),
        ("1.nvmlDeviceGetTemperature.sleep_s 50", "GPU 1: no answer in 0."),
    ],
)
def test_driver_that_is_silent_for_seconds_is_not_judged(node: Node, fault: str, why: str) -> None:
    """Without persistence mode a healthy one starts for 1 to 3 s a GPU; nobody waits longer than that."""
    node.install("[prolog]\nprobe_s = 2\n")
    node.set_gpus(fault)
    assert node.start().returncode == 0
    (line,) = node.read_log()
    assert line.startswith(f"prolog: job 12: admitted: not judged: {why}")
    assert line.endswith(HUNG)
    assert node.read_calls() == []
    node.install('[prolog]\nprobe_s = 2\nunjudged = "refuse"\n')
    assert node.start().returncode == REFUSED
    assert node.read_calls() == []
    dry = node.start("rehearsal")
    assert dry.stdout.startswith(f"not judged: {why}")


def test_a_silent_gpu_hides_no_other_fault(node: Node) -> None:
    """A lost one beside it refuses all the same."""
    node.set_gpus("0.nvmlDeviceGetTemperature.sleep_s 50", LOST)
    assert node.start().returncode == REFUSED
    assert "unfit: GPU 1: gpu_lost" in node.read_log()[0]


def test_hang_that_the_last_sweep_convicted_needs_no_25_s_again(node: Node) -> None:
    """The sweep had waited for long enough, and in this boot."""
    node.install("[prolog]\nprobe_s = 2\n")
    node.set_gpus("init.sleep_s 50")
    hung = Finding("node_hung", None, Level.FAIL, HealthClass.REBOOT, "no answer", "", "no answer in 27.0 s")
    write_snapshot(node.place, NodeVerdict(Fitness.UNFIT, HealthClass.REBOOT, (hung,)), HealthReading())
    assert node.start().returncode == REFUSED
    assert node.read_log()[0].startswith("prolog: job 12: unfit: node: node_hung (reboot): ")
    write_record(node.place.snapshot, {**(read_record(node.place.snapshot) or {}), "boot_id": "another"})
    assert node.start().returncode == 0


@pytest.mark.long
def test_sweep_tells_a_slow_driver_from_one_that_hangs(node: Node) -> None:
    """It waits for 25 s; then the next prolog need not."""
    node.set_gpus("init.sleep_s 8")
    assert node.start("sweep").returncode == 0
    assert node.start().returncode == 0
    assert node.read_log() == ["prolog: job 12: admitted: healthy in the sweep 0 s ago"]
    node.set_gpus("init.sleep_s 100")
    assert node.start("sweep").returncode == 0
    told, drained = node.read_log()[1:]
    assert told == "sweep: healthy -> unfit: node_hung"
    assert drained.startswith("drained n1: slurm-guard: node_hung class=reboot id=")
    assert node.start().returncode == REFUSED


def test_gpu_that_is_lost_at_the_prolog_has_the_serial_number_that_it_had(node: Node) -> None:
    """An earlier probe of this boot has read it."""
    node.set_gpus()
    node.start()
    node.set_gpus(LOST)
    assert node.start().returncode == REFUSED
    (entry,) = Ledger(node.place.ledger).read()
    assert (entry.check, entry.gpu_serial) == ("gpu_lost", "165000001")


def test_off_turns_it_off(node: Node) -> None:
    """Nothing is judged, made or written."""
    node.place.off.touch()
    node.set_gpus(LOST)
    assert node.start().returncode == 0
    assert not node.place.log.exists()
    assert not node.place.jobs.exists()


def test_bug_of_ours_is_one_line_and_no_refusal(node: Node) -> None:
    """Its code is neither 0 nor that of a refusal: the wrapper knows it and lets the job start."""
    done = node.start("nonsense")
    assert done.returncode == BROKEN
    assert done.stderr.count("\n") == 1
    node.place.compiled.write_text(node.place.compiled.read_text().replace('"log":"/var', '"log":7,"x":"'))
    node.sweep(Fitness.HEALTHY)
    done = node.start()
    assert done.returncode == BROKEN
    assert done.stderr.count("\n") == 1


FORBIDDEN = {
    "typer",
    "rich",
    "psutil",
    "tomllib",
    "jinja2",
    "torch",
    "pydantic",
    "asyncio",
    "pynvml",
    "click",
}
HEAVY = {"dataclasses", "inspect", "subprocess", "ctypes", "threading", "slurm_guard.model.health"}


def imported(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The modules that -X importtime names."""
    assert done.returncode == 0
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}


def test_pass_path_loads_next_to_nothing(node: Node) -> None:
    """Where a sweep speaks for the node; the spool is mounted already."""
    node.start()
    node.sweep(Fitness.HEALTHY)
    modules = imported(node.start("prolog", "-X", "importtime"))
    assert "slurm_guard.hooks.spool" in modules
    assert modules & (FORBIDDEN | HEAVY) == set()


def test_probe_loads_no_program_and_no_nvml_in_the_prolog_itself(node: Node) -> None:
    """NVML lives in the fork, whose stderr is closed; what asks Slurm comes with a refusal only."""
    modules = imported(node.start("prolog", "-X", "importtime"))
    assert "slurm_guard.hooks.gate" in modules
    assert (
        modules & (FORBIDDEN | {"subprocess", "slurm_guard.hooks.drain", "slurm_guard.hooks.page"}) == set()
    )
