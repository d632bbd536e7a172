"""No secret reaches the fault folder, and what is needed to understand a job does."""

from __future__ import annotations

import time

import pytest

from slurm_guard.scene.redact import REDACTED, redact_command, redact_environment

_RANDOM = "q7Fz0LmX2vKp9RtB4nWc8YdHs1GjUe6A"
_HEX = "9f86d081884c7d659a2feaa0c55ad015"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_API_KEY", "x"),
        ("HF_TOKEN", "x"),
        ("MY_SECRET", "x"),
        ("DB_PASSWORD", "x"),
        ("PASSWD", "x"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/gcp.json"),
        ("SSH_AUTH_SOCK", "/tmp/x"),
        ("session_cookie", "x"),
        ("SLURM_JWT", "x"),
        ("HARMLESS", "AKIAIOSFODNN7EXAMPLE"),
        ("HARMLESS", "hf_abcdefghijklmnop"),
        ("HARMLESS", "ghp_abcdefghijklmnop0123"),
        ("HARMLESS", "github_pat_11AAAAAAA0abcdef"),
        ("HARMLESS", "sk-proj-abcdefgh12345"),
        ("HARMLESS", "xoxb-1234567890-abc"),
        ("HARMLESS", "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln"),
        ("HARMLESS", _RANDOM),
        ("HARMLESS", _HEX),
        ("SLURM_COMMENT", "ghp_abcdefghijklmnop0123"),
    ],
)
def test_a_secret_is_taken_out(name: str, value: str) -> None:
    """By its name or by its form."""
    assert redact_environment({name: value}) == {name: REDACTED}


def test_a_secret_within_a_value_goes_and_the_rest_stays() -> None:
    """URLs keep their host, options their neighbours."""
    found = redact_environment(
        {
            "HTTPS_PROXY": "http://me:pw@proxy:3128",
            "OPTS": "--lr 1 --token abc123 --api_key=zzz --steps 5",
            "HEADERS": "Authorization: Bearer abcdefghij",
        }
    )
    assert found["HTTPS_PROXY"] == f"http://{REDACTED}@proxy:3128"
    assert found["OPTS"] == f"--lr 1 --token {REDACTED} --api_key={REDACTED} --steps 5"
    assert "abcdefghij" not in found["HEADERS"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_JOB_NODELIST", "dev-n[1-4]"),
        ("PATH", "/opt/conda/envs/training2024/bin:/usr/bin"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("CUDA_VISIBLE_DEVICES", "GPU-5f1c2e9a-7d3b-4c6e-8a1f-2b3c4d5e6f70"),
        ("NCCL_SOCKET_IFNAME", "eth0"),
        ("CHECKPOINT", "/scratch/project_2024/run17/checkpoints/iteration_000812"),
        ("MODEL", "meta-llama/Llama-3.1-8B-Instruct-fp8-dynamic"),
        ("SLURM_GUARD_RUN", _HEX),
    ],
)
def test_what_explains_a_job_stays(name: str, value: str) -> None:
    """Nodes, paths, devices and names are no secrets."""
    assert redact_environment({name: value}) == {name: value}


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--password", "hunter2x"],
        ["train.py", "--password=hunter2x"],
        ["train.py", "--wandb-api-key", "hunter2x"],
        ["train.py", "token=hunter2x"],
        ["env", "HF_TOKEN=hunter2x", "python"],
        ["bash", "-c", "export SECRET_WORD='hunter2x'; python train.py --password hunter2x"],
        ["curl", "-H", "Authorization: Bearer hunter2x", "https://me:hunter2x@host/"],
    ],
)
def test_a_command_line_shows_no_secret(words: list[str]) -> None:
    """Options, assignments, scripts, headers and URLs."""
    assert "hunter2x" not in redact_command(words)


def test_a_plain_command_line_stays_as_it_is() -> None:
    """Nothing is taken that needn't be."""
    words = ["python", "train.py", "--lr", "3e-4", "--data=/data/c4", "--tokenizer", "gpt2"]
    assert redact_command(words) == " ".join(words)


@pytest.mark.parametrize(
    "text", ["x", "-", "token", "a://", "eyJabcde", "token=", "--key ", "a ", "-----BEGIN"]
)
def test_a_long_value_costs_no_time(text: str) -> None:
    """Nobody's environment can hold the scene up."""
    begun_s = time.monotonic()
    redact_environment({"LONG": text * 20_000})
    assert time.monotonic() - begun_s < 1
