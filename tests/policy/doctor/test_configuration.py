"""The rules of `slurm-guard doctor` on a real answer of scontrol, and on broken ones."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_config import GOOD, judge, shown

from slurm_guard.model.advice import Level
from slurm_guard.model.limits import Settings
from slurm_guard.policy.doctor import configuration, installation, slurm_conf
from slurm_guard.policy.doctor.configuration import RULES, SETTINGS_RULES, judge_config
from slurm_guard.policy.doctor.hook import HOOK_RULES
from slurm_guard.policy.doctor.site_kit import InstalledKit, judge_kit
from slurm_guard.policy.doctor.slurm_conf import (
    find_unknown,
    holds_settings,
    parse_scontrol_config,
    parse_slurm_conf,
)

SNIPPET = (Path(__file__).parents[3] / "site-config" / "slurm.conf.snippet").read_text()

HOOKS = {
    "Prolog": "/etc/slurm/prolog.sh",
    "Epilog": "/etc/slurm/epilog.sh",
    "PrologFlags": "Alloc,DeferBatch",
    "PrologEpilogTimeout": "60",
}
NEWER = {"SLURM_VERSION": "24.11.5", **HOOKS, "SchedulerParameters": "nohold_on_prolog_fail"}

BROKEN = {
    "an old Slurm": ({"SLURM_VERSION": "21.08.8"}, "version", Level.WARN),
    "a Slurm without --overlap": ({"SLURM_VERSION": "20.02.7"}, "version", Level.ERROR),
    "another slurm.conf here": (
        {"HASH_VAL": "Different Ours=0x1 Slurmctld=0x2"},
        "conf-differs",
        Level.WARN,
    ),
    "processes followed by parentage": (
        {"ProctrackType": "proctrack/linuxproc"},
        "proctrack",
        Level.ERROR,
    ),
    "the default of UnkillableStepTimeout": (
        {"UnkillableStepTimeout": "60 sec"},
        "unkillable-timeout",
        Level.WARN,
    ),
    "a MessageTimeout that asks for more": ({"MessageTimeout": "60 sec"}, "unkillable-timeout", Level.WARN),
    "no time to save": ({"KillWait": "10 sec"}, "kill-wait", Level.WARN),
    "no requeue": ({"JobRequeue": "0"}, "job-requeue", Level.WARN),
    "output that is emptied": ({"JobFileAppend": "0"}, "file-append", Level.NOTE),
    "ranks killed before the scene": ({"KillOnBadExit": "1"}, "kill-on-bad-exit", Level.NOTE),
    "credentials of five seconds": ({"AuthInfo": "socket=/s,cred_expire=5"}, "credential-life", Level.WARN),
    "a word of a later release": ({"SchedulerParameters": "requeue_delay=9"}, "requeue-delay", Level.NOTE),
    "a young expedited requeue": (
        {"SLURM_VERSION": "25.11.1", "SlurmctldParameters": "idle_on_node_suspend,enable_expedited_requeue"},
        "expedited-requeue",
        Level.WARN,
    ),
    "GPUs open to all jobs": ({"ConstrainDevices": "no"}, "constrain-devices", Level.WARN),
    "signals to grandchildren": (
        {"IgnoreSystemdOnFailure": "no\nSignalChildrenProcesses = yes"},
        "signal-children",
        Level.WARN,
    ),
    "the guard's exit code run again": ({"RequeueExit": "7,80-90"}, "requeue-exit", Level.ERROR),
    "a release that loses epilogs": (
        {**NEWER, "SLURM_VERSION": "25.11.2"},
        "version-fault",
        Level.ERROR,
    ),
    "the first of a faulty row": ({**NEWER, "SLURM_VERSION": "24.05.0"}, "version-fault", Level.ERROR),
    "RunInJob before it was mended": (
        {**NEWER, "SLURM_VERSION": "25.11.5", "PrologFlags": "RunInJob,DeferBatch"},
        "version-fault",
        Level.ERROR,
    ),
    "a prolog without a limit": ({**HOOKS, "PrologEpilogTimeout": "65534"}, "hook-timeout", Level.WARN),
    "an epilog that is cut off": ({**HOOKS, "PrologEpilogTimeout": "5"}, "hook-timeout", Level.WARN),
    "a prolog at the first step": ({**HOOKS, "PrologFlags": "(null)"}, "prolog-flags", Level.WARN),
    "a batch script that does not wait": ({**HOOKS, "PrologFlags": "Contain"}, "prolog-flags", Level.WARN),
    "DeferBatch alone": ({**HOOKS, "PrologFlags": "DeferBatch"}, "prolog-flags", Level.WARN),
    "an endless loop of prologs": (
        {**HOOKS, "SchedulerParameters": "nohold_on_prolog_fail"},
        "prolog-hold",
        Level.ERROR,
    ),
    "jobs held by a bad node": (
        {**NEWER, "SLURM_VERSION": "23.02.5", "SchedulerParameters": "defer"},
        "prolog-hold",
        Level.NOTE,
    ),
    "a prolog of the controller": ({"PrologSlurmctld": "/etc/slurm/ctl.sh"}, "prolog-slurmctld", Level.NOTE),
    "a health check that never runs": (
        {"HealthCheckProgram": "/usr/sbin/nhc"},
        "health-interval",
        Level.WARN,
    ),
}


@pytest.mark.parametrize(("changes", "check", "level"), BROKEN.values(), ids=BROKEN.keys())
def test_each_broken_configuration_names_its_finding(
    changes: dict[str, str], check: str, level: Level
) -> None:
    """Exactly this one, with a reason and the line to write."""
    (said,) = judge(shown(**changes))
    assert (said.check, said.level) == (check, level)
    assert all((said.what, said.why, said.where, said.line))


def test_no_rule_is_without_a_broken_configuration() -> None:
    """Every rule speaks in one of them."""
    texts = [parse_scontrol_config(shown(**changes)) for changes, _, _ in BROKEN.values()]
    silent = {rule.__name__ for rule in (*RULES, *HOOK_RULES) if not any(map(rule, texts))}
    silent |= {rule.__name__ for rule in SETTINGS_RULES if not any(rule(text, Settings()) for text in texts)}
    assert silent == set()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        HOOKS,
        NEWER,
        {**NEWER, "SLURM_VERSION": "26.05.5", "PrologFlags": "DeferBatch"},
        {**NEWER, "PrologEpilogTimeout": "65534\nPrologTimeout = 60\nEpilogTimeout = 90"},
        {"SLURM_VERSION": "25.11.4", "SchedulerParameters": "requeue_delay=10"},
        {"SLURM_VERSION": "25.11.4", "SlurmctldParameters": "enable_expedited_requeue"},
        {"HealthCheckProgram": "/usr/sbin/nhc", "HealthCheckInterval": "300 sec"},
        {"RequeueExit": "85,87-90"},
        {"AuthInfo": "cred_expire=30"},
        {**HOOKS, "PrologEpilogTimeout": "30"},
        {**HOOKS, "PrologEpilogTimeout": "120"},
        {**NEWER, "SLURM_VERSION": "23.02.5"},
        {**NEWER, "SLURM_VERSION": "25.11.4"},
        {**NEWER, "SLURM_VERSION": "25.11.6", "PrologFlags": "RunInJob,DeferBatch"},
        {"UnkillableStepTimeout": "300 sec", "MessageTimeout": "60 sec"},
        {"GresTypes": "(null)", "ConstrainDevices": "no"},
        {"SLURM_VERSION": "23.02.1"},  # its fault is one of prologs, and there is none
    ],
)  # fmt: skip
def test_a_good_configuration_is_silent(changes: dict[str, str]) -> None:
    """Also those that look like a broken one."""
    assert judge(shown(**changes)) == []


def test_the_line_keeps_what_is_there() -> None:
    """Flags that a site has set are not lost by following the advice."""
    (said,) = judge(shown(**{**HOOKS, "PrologFlags": "Contain,X11"}))
    assert said.line == "PrologFlags=Contain,X11,DeferBatch"
    (said,) = judge(shown(MessageTimeout="100 sec"))
    assert said.line == "UnkillableStepTimeout=500"


def test_errors_come_first() -> None:
    """The gravest is read first."""
    said = judge(shown(JobFileAppend="0", KillWait="5 sec", ProctrackType="proctrack/pgid"))
    assert [one.check for one in said] == ["proctrack", "kill-wait", "file-append"]


def test_the_sites_own_settings_count() -> None:
    """Another exit code is another conflict."""
    assert judge(shown(RequeueExit="86"), Settings(exit_code=90)) == []
    assert [one.check for one in judge(shown(RequeueExit="90"), Settings(exit_code=90))] == ["requeue-exit"]


def test_the_snippet_is_what_the_doctor_wants() -> None:
    """As it is, with its commented line on the releases that know it, and line by line against the advice."""
    assert holds_settings(SNIPPET)
    assert holds_settings("Prolog=/etc/slurm/prolog.sh")
    for version, checks in (((22, 5, 8), []), ((24, 11, 5), ["prolog-hold"]), ((26, 5, 5), ["prolog-hold"])):
        said = judge_config(parse_slurm_conf(SNIPPET, version=version), Settings())
        assert [one.check for one in said] == checks
    whole = re.sub(r"^#(\w+=)", r"\1", SNIPPET, flags=re.MULTILINE)
    assert judge_config(parse_slurm_conf(whole, version=(25, 11, 4)), Settings()) == []


def test_every_line_of_the_snippet_answers_an_advice() -> None:
    """A line taken out or turned round is one that the doctor would have you write."""
    worse = {
        "ProctrackType": "proctrack/pgid",
        "JobRequeue": "0",
        "JobFileAppend": "0",
        "UnkillableStepTimeout": "60",
        "Prolog": "",
        "Epilog": "",
        "HealthCheckProgram": "",
        "HealthCheckInterval": "0",
        "PrologFlags": "",
        "PrologEpilogTimeout": "600",
    }
    assert set(re.findall(r"^(\w+)=", SNIPPET, re.MULTILINE)) == set(worse)
    for key, value in worse.items():
        changed = re.sub(rf"^({key})=(.*)$", rf"\1={value}", SNIPPET, flags=re.MULTILINE)
        config = parse_slurm_conf(changed, version=(22, 5, 8))
        (said,) = judge_config(config, Settings()) + judge_kit(InstalledKit(), config)
        assert said.line.partition(" (")[0] in SNIPPET.splitlines()


def test_the_examples_hold() -> None:
    """Every example in the modules is true."""
    results = [doctest.testmod(module) for module in (slurm_conf, configuration, installation)]
    assert [(result.failed, result.attempted > 0) for result in results] == [(0, True)] * 3


def test_a_file_and_the_controller_are_judged_alike() -> None:
    """slurm.conf in its own spelling: comments, quotes, continued lines, small letters, tables of nodes."""
    text = """
    clustername=a SlurmctldHost=ctl   # two on one line
    killwait = 10
    KillWait=60                       # the last one counts
    UnkillableStepTimeout=180 JobFileAppend=1
    SchedulerParameters="defer,\\
    bf_interval=30"
    Prolog=/etc/slurm/a.sh
    Prolog=/etc/slurm/b.sh
    PrologFlags=Alloc,DeferBatch
    PrologEpilogTimeout=60
    MailProg=/bin/mail\\#1
    NodeName=n[1-4] KillWait=1 State=UNKNOWN
    #JobRequeue=0
    """
    config = parse_slurm_conf(text, "ConstrainDevices=no", (22, 5, 8))
    assert config.words("Prolog") == ("/etc/slurm/a.sh", "/etc/slurm/b.sh")
    assert config.words("SchedulerParameters") == ("defer", "bf_interval=30")
    assert config.text("MailProg") == "/bin/mail\\#1"
    assert (config.number("KillWait"), config.cgroup) == (60, {"constraindevices": "no"})
    assert judge_config(config, Settings()) == []
    assert judge_config(parse_slurm_conf(text.replace("KillWait=60", "")), Settings())[0].check == "kill-wait"


def test_a_truncated_answer_is_never_taken_for_a_good_one() -> None:
    """Cut anywhere before the last key that is judged, it lacks something; the whole one lacks nothing."""
    assert find_unknown(parse_scontrol_config(GOOD)) == ()
    for end in range(0, GOOD.index("WaitTime"), 97):
        assert find_unknown(parse_scontrol_config(GOOD[:end])) != ()
    assert find_unknown(parse_scontrol_config(shown(KillWait="soon"))) == ("killwait",)


def test_a_value_that_looks_like_a_line_changes_nothing() -> None:
    """Of two equal keys the first counts, and a part that is not judged cannot speak for one that is."""
    text = shown(MailProg="/bin/true KillWait = 1")
    late = text + "\nOther Plugins Configuration:\nSignalChildrenProcesses = yes\nKillWait = 1 sec\n"
    twice = shown(KillWait="30 sec\nKillWait = 1 sec")
    assert judge(text) == judge(late) == judge(twice) == judge(text + "\nKillWait = 1 sec\n") == []


@given(st.text(max_size=300) | st.lists(st.sampled_from([*GOOD.splitlines(), "=", "[", "a:"])).map("\n".join))
def test_no_answer_makes_the_rules_fail(text: str) -> None:
    """Whatever stands there, as an answer or as a file, it is judged or unknown."""
    for config in (parse_scontrol_config(text), parse_slurm_conf(text, text, (23, 2, 0))):
        judge_config(config, Settings())
        find_unknown(config)


@pytest.mark.parametrize("value", ["1" * 5000, "-5", "٣", "0x10", "30.5", "\x1b[2J", "1e9", "nan"])
def test_a_hostile_number_is_no_number(value: str) -> None:
    """It is unknown, and no rule speaks on it."""
    text = shown(KillWait=f"{value} sec")
    assert find_unknown(parse_scontrol_config(text)) == ("killwait",)
    assert judge(text) == []
    assert judge(shown(AuthInfo=f"cred_expire={value}", RequeueExit=f"{value},0-{value}")) == []
