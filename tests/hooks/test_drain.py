"""A node drains itself below the cap, over nobody's words, and takes nothing back but its own drain."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from slurm_guard.hooks.drain import Drained, drain_own_node, open_slurm, read_own_drain, settle
from slurm_guard.hooks.place import Place
from slurm_guard.model.health import Finding, Fitness, HealthClass, Level, NodeVerdict
from slurm_guard.model.site import SiteSettings
from slurm_guard.policy.drain import parse_reason
from slurm_guard.ports import Clock, Slurm
from slurm_guard.testing.clock import FakeClock
from slurm_guard.testing.slurm import FakeSlurm

LOST = Finding("gpu_lost", 3, Level.FAIL, HealthClass.REBOOT, "lost", "", "GPU 3 is lost")
UNFIT = NodeVerdict(Fitness.UNFIT, HealthClass.REBOOT, (LOST,))
SETTINGS = SiteSettings(drain_limit=2, drain_percent=100)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cluster(clock: FakeClock) -> FakeSlurm:
    return FakeSlurm([f"n{number}" for number in range(1, 6)], clock=clock).as_administrator()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def drain(cluster: Slurm, node: str, clock: Clock, place: Place, job_id: str = "") -> Drained:
    return drain_own_node(cluster, node, UNFIT, SETTINGS, clock, place=place, job_id=job_id)


def test_a_drain_names_the_finding_the_job_and_itself(
    cluster: FakeSlurm, clock: FakeClock, place: Place
) -> None:
    """The reason can be read again, and the node has written down which it is."""
    assert drain(cluster, "n1", clock, place, job_id="12") is Drained.DRAINED
    seen, own = cluster.read_node("n1"), read_own_drain(place, "n1")
    reason = parse_reason(seen.reason)
    assert reason is not None
    assert (reason.check, reason.gpu, reason.cls, reason.job_id) == ("gpu_lost", 3, HealthClass.REBOOT, "12")
    assert own is not None
    assert (own.reason, own.by, own.at_s, own.settled) == (seen.reason, "root", seen.reason_s, True)


@pytest.mark.parametrize("state", ["DRAIN", "DOWN", "FAIL"])
def test_the_reason_of_a_node_out_of_service_is_never_overwritten(
    state: str, cluster: FakeSlurm, clock: FakeClock, place: Place
) -> None:
    """Whatever it says, even nothing."""
    cluster.set_node("n1", "IDLE", state, reason="bad cable, ticket 4711", by="alice")
    before = cluster.read_node("n1")
    assert drain(cluster, "n1", clock, place) is Drained.ALREADY
    assert cluster.read_node("n1") == before
    assert read_own_drain(place, "n1") is None


def test_at_the_cap_nothing_is_drained_at_all(cluster: FakeSlurm, clock: FakeClock, place: Place) -> None:
    """The third within the hour stays in service; after the hour there is room again."""
    assert [drain(cluster, node, clock, place) for node in ("n1", "n2", "n3")] == [
        Drained.DRAINED, Drained.DRAINED, Drained.CAPPED,
    ]  # fmt: skip
    assert cluster.read_node("n3").reason == ""
    said = "stays in service: 2 nodes of ours were drained within the hour, the limit is 2 (drain_limit, "
    assert f"] n3: gpu_lost GPU 3: {LOST.evidence}: {said}" in place.log.read_text()
    clock.advance(3600)
    assert drain(cluster, "n3", clock, place) is Drained.DRAINED


def test_what_a_human_has_lifted_leaves_room(cluster: FakeSlurm, clock: FakeClock, place: Place) -> None:
    """A lifted drain is in no list of Slurm's any more."""
    for node in ("n1", "n2"):
        drain(cluster, node, clock, place)
    cluster.undrain_node("n1")
    assert drain(cluster, "n3", clock, place) is Drained.DRAINED


class Meddled:
    """A cluster in which somebody acts right after our drain."""

    def __init__(self, cluster: FakeSlurm, act: Callable[[], None]) -> None:
        self._cluster = cluster
        self._act = act

    def __getattr__(self, name: str) -> object:
        return getattr(self._cluster, name)

    def drain_node(self, node: str, reason: str) -> None:
        self._cluster.drain_node(node, reason)
        self._act()


def test_words_that_a_human_puts_over_ours_are_his(
    cluster: FakeSlurm, clock: FakeClock, place: Place
) -> None:
    """Even where the breaker would have taken ours back."""

    def act() -> None:
        for node in ("n2", "n3"):
            cluster.drain_node(node, "slurm-guard: gpu_lost class=reboot id=00000000")
        cluster.set_node("n4", "IDLE", "DRAIN", reason="mine now", by="alice")

    meddled: Slurm = Meddled(cluster, act)  # type: ignore[assignment]
    assert drain(meddled, "n4", clock, place) is Drained.ALREADY
    assert cluster.read_node("n4").reason == "mine now"
    assert read_own_drain(place, "n4") is None


def test_one_drain_too_many_is_taken_back(cluster: FakeSlurm, clock: FakeClock, place: Place) -> None:
    """Two with smaller names have got the same second."""

    def act() -> None:
        for node in ("n1", "n2"):
            cluster.drain_node(node, "slurm-guard: gpu_lost class=reboot id=00000000")

    meddled: Slurm = Meddled(cluster, act)  # type: ignore[assignment]
    assert drain(meddled, "n3", clock, place) is Drained.CAPPED
    assert cluster.read_node("n3").reason == ""
    assert cluster.read_node("n3").states == {"IDLE"}
    assert read_own_drain(place, "n3") is None


def test_a_controller_that_falls_silent_after_the_drain_leaves_the_counting_to_a_sweep(
    cluster: FakeSlurm, clock: FakeClock, place: Place
) -> None:
    """The drain stands, and is not yet settled; a later look settles it."""

    def act() -> None:
        cluster.available = False

    meddled: Slurm = Meddled(cluster, act)  # type: ignore[assignment]
    assert drain(meddled, "n1", clock, place) is Drained.DRAINED
    own = read_own_drain(place, "n1")
    assert own is not None
    assert not own.settled
    cluster.available = True
    assert settle(cluster, "n1", own.reason, SETTINGS, place, last=True) is Drained.DRAINED
    own = read_own_drain(place, "n1")
    assert own is not None
    assert own.settled


def test_a_controller_that_does_not_answer_is_unreachable(clock: FakeClock, place: Place) -> None:
    """So is one that refuses."""
    silent = FakeSlurm(["n1"], clock=clock).as_administrator()
    silent.available = False
    assert drain(silent, "n1", clock, place) is Drained.UNREACHABLE
    assert drain(FakeSlurm(["n1"], clock=clock), "n1", clock, place) is Drained.UNREACHABLE


def test_a_verdict_without_a_fault_drains_nothing(cluster: FakeSlurm, clock: FakeClock, place: Place) -> None:
    """A mistake of ours, said as one."""
    with pytest.raises(ValueError, match="nothing in this verdict"):
        drain_own_node(cluster, "n1", NodeVerdict(Fitness.HEALTHY, None), SETTINGS, clock, place=place)
    assert cluster.read_node("n1").states == {"IDLE"}


def test_a_hook_finds_scontrol_by_its_full_path(tmp_path: Path) -> None:
    """There is no PATH in its environment, and only SLURM_CONF is passed on."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "NodeName=n1 State=IDLE Comment=$SLURM_CONF$SECRET"\n')
    program.chmod(0o755)
    slurm = open_slurm(str(program), {"SLURM_CONF": "/etc/s.conf", "SECRET": "x"})
    assert slurm.read_node("n1").states == {"IDLE"}


class Turns:
    """Lets threads run one at a time, each up to its next question to Slurm, in the order of `choose`."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self.now_s = 1_000_000_000.0
        self._choose = choose
        self._waiting: dict[str, tuple[float, threading.Semaphore]] = {}
        self._back = threading.Semaphore(0)

    def pause(self, name: str, until_s: float = 0.0) -> None:
        """Called by a thread: give the turn back, and wait for the next one."""
        mine = threading.Semaphore(0)
        self._waiting[name] = (until_s, mine)
        self._back.release()
        mine.acquire()

    def run(self, works: dict[str, Callable[[], None]]) -> None:
        """Until all have ended."""

        def live(name: str, work: Callable[[], None]) -> None:
            self.pause(name)
            work()
            self._back.release()

        for name, work in works.items():
            threading.Thread(target=live, args=(name, work), daemon=True).start()
            self._back.acquire()
        while self._waiting:
            ready = sorted(name for name, (until_s, _) in self._waiting.items() if until_s <= self.now_s)
            choice = self._choose(len(ready) + 1)
            if choice == len(ready):
                self.now_s += 0.3
                continue
            self._waiting.pop(ready[choice])[1].release()
            self._back.acquire()


class TurnClock:
    """The clock of one of the threads."""

    def __init__(self, turns: Turns, name: str) -> None:
        self._turns = turns
        self._name = name

    def now_s(self) -> float:
        return self._turns.now_s

    def wall_s(self) -> float:
        return self._turns.now_s

    def sleep(self, seconds: float) -> None:
        self._turns.pause(self._name, self._turns.now_s + seconds)


class TurnSlurm:
    """Slurm as one of the threads sees it: before each answer the others may have their turn."""

    def __init__(self, cluster: FakeSlurm, turns: Turns, name: str) -> None:
        self._cluster = cluster
        self._turns = turns
        self._name = name

    def __getattr__(self, method: str) -> Callable[..., object]:
        def ask(*words: str) -> object:
            self._turns.pause(self._name)
            answer: object = getattr(self._cluster, method)(*words)
            return answer

        return ask


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(random=st.randoms(use_true_random=False), cap=st.integers(1, 12))
def test_fifty_nodes_that_fail_at_once_settle_at_the_cap_in_whatever_order_they_come(
    random: object, cap: int, tmp_path: Path
) -> None:
    """Exactly the cap is drained in the end, never is a human's reason touched, and all know their part."""
    pick: Callable[[int], int] = random.randrange  # type: ignore[attr-defined]
    turns = Turns(pick)
    names = [f"n{number:02}" for number in range(50)]
    cluster = FakeSlurm(names, clock=TurnClock(turns, "")).as_administrator()
    for name in ("n00", "n01"):
        cluster.set_node(name, "IDLE", "DRAIN", reason=f"{name} is mine", by="alice")
    site = SiteSettings(drain_limit=cap, drain_percent=100)
    place = Place(tmp_path)
    came: dict[str, Drained] = {}

    def work(name: str) -> Callable[[], None]:
        slurm: Slurm = TurnSlurm(cluster, turns, name)  # type: ignore[assignment]

        def fail() -> None:
            came[name] = drain_own_node(slurm, name, UNFIT, site, TurnClock(turns, name), place=place)

        return fail

    turns.run({name: work(name) for name in names})
    drained = [seen for seen in cluster.read_nodes() if parse_reason(seen.reason)]
    assert len(drained) == cap
    assert {name for name, end in came.items() if end is Drained.DRAINED} == {seen.name for seen in drained}
    assert [cluster.read_node(name).reason for name in ("n00", "n01")] == ["n00 is mine", "n01 is mine"]
    assert sum(end is Drained.CAPPED for end in came.values()) == 48 - cap
