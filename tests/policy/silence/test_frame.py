"""Frames of a stack tell what the rank is doing, by functions that do it and not by those that sound so."""

from __future__ import annotations

import pytest

from slurm_guard.model.phase import Phase
from slurm_guard.policy.silence.frame import recognise_frames, waits_for_child, waits_for_thread

SITE = "/opt/env/lib/python3.11/site-packages"
C10D = f"{SITE}/torch/distributed/distributed_c10d.py"
MAIN = ("main", "/home/u/train.py")
TRAIN = ("train_one_epoch", "/home/u/engine.py")

SAVES = {
    "torch.save": [("_save", f"{SITE}/torch/serialization.py"), ("save", f"{SITE}/torch/serialization.py")],
    "dcp": [
        ("write_data", f"{SITE}/torch/distributed/checkpoint/filesystem.py"),
        ("save", f"{SITE}/torch/distributed/checkpoint/state_dict_saver.py"),
    ],
    "safetensors": [("save_file", f"{SITE}/safetensors/torch.py")],
    "transformers": [("save_pretrained", f"{SITE}/transformers/modeling_utils.py")],
    "megatron": [("save_checkpoint_and_time", "/opt/megatron/training/training.py")],
    "own code": [("copy", "/home/u/io.py"), ("_save_checkpoint", "/home/u/train.py")],
    "ours": [
        ("fsync_tree", f"{SITE}/slurm_guard/adapters/files.py"),
        ("write_ring", f"{SITE}/slurm_guard/checkpoint/ring.py"),
        ("iteration", f"{SITE}/slurm_guard/training/guard.py"),
    ],
    "the check after it": [
        ("load", f"{SITE}/torch/serialization.py"),
        ("write_state", f"{SITE}/slurm_guard/training/state.py"),
    ],
    "pushed while it trains": [
        ("upload_folder", f"{SITE}/huggingface_hub/hf_api.py"),
        ("_save_checkpoint", f"{SITE}/transformers/trainer.py"),
    ],
}

EVALUATIONS = [
    ("evaluate", "/home/u/train.py"),
    ("evaluation_loop", f"{SITE}/transformers/trainer.py"),
    ("validate", "/home/u/main.py"),
    ("validation_step", "/home/u/module.py"),
    ("run_eval", "/home/u/train.py"),
    ("eval_one_epoch", "/home/u/train.py"),
    ("do_validation", "/home/u/train.py"),
    ("runEval", "/home/u/train.py"),
    ("val_epoch", "/home/u/train.py"),
    ("test", "/home/u/mnist.py"),
    ("test_epoch", "/home/u/mnist.py"),
    ("estimate_loss", "/home/u/nanogpt/train.py"),
    ("run", f"{SITE}/lightning/pytorch/loops/evaluation_loop.py"),
]

FALSE_FRIENDS = [
    ("test_that_training_converges", "/home/u/tests/test_train.py"),
    ("test_epoch", "/home/u/tests/test_train.py"),
    ("pytest_pyfunc_call", f"{SITE}/_pytest/python.py"),
    ("validate", f"{SITE}/pydantic/main.py"),
    ("validate_arguments", "/home/u/train.py"),
    ("eval", f"{SITE}/torch/nn/modules/module.py"),
    ("literal_eval", "/usr/lib/python3.11/ast.py"),
    ("_eval_type", "/usr/lib/python3.11/typing.py"),
    ("build_validation_dataset", "/home/u/data.py"),
    ("get_eval_dataloader", f"{SITE}/transformers/trainer.py"),
    ("_maybe_log_save_evaluate", f"{SITE}/transformers/trainer.py"),
    ("should_evaluate", "/home/u/train.py"),
    ("update_val", "/home/u/meter.py"),
    ("latest", "/home/u/train.py"),
    ("retrieval", "/home/u/train.py"),
    ("save_for_backward", "/home/u/function.py"),
    ("saved_tensors_hook", "/home/u/function.py"),
    ("save_rng_state", "/home/u/seed.py"),
    ("checkpoint", f"{SITE}/torch/utils/checkpoint.py"),
    ("load_batch", "/home/u/data.py"),
    ("load_config", "/home/u/config.py"),
    ("compile_wrapper", f"{SITE}/torch/_dynamo/eval_frame.py"),
    ("run", f"{SITE}/torch/_inductor/runtime/triton_heuristics.py"),
    ("__call__", f"{SITE}/torch/_inductor/output_code.py"),
    ("run", f"{SITE}/triton/runtime/jit.py"),
    ("compiled_fn", f"{SITE}/torch/_inductor/compile_fx.py"),
]

COMPILATIONS = [
    ("_compile", f"{SITE}/torch/_dynamo/convert_frame.py"),
    ("fx_codegen_and_compile", f"{SITE}/torch/_inductor/compile_fx.py"),
    ("wait", f"{SITE}/torch/_inductor/async_compile.py"),
    ("benchmark_all_configs", f"{SITE}/torch/_inductor/runtime/triton_heuristics.py"),
    ("make_cubin", f"{SITE}/triton/backends/nvidia/compiler.py"),
    ("_bench", f"{SITE}/triton/runtime/autotuner.py"),
    ("_run_ninja_build", f"{SITE}/torch/utils/cpp_extension.py"),
]

TRAINING = [
    ("all_reduce", C10D),
    ("barrier", C10D),
    ("adamw", f"{SITE}/torch/optim/adamw.py"),
    ("_engine_run_backward", f"{SITE}/torch/autograd/graph.py"),
    ("backward", f"{SITE}/torch/_tensor.py"),
]


@pytest.mark.parametrize("frames", SAVES.values(), ids=SAVES)
def test_a_checkpoint_that_is_written(frames: list[tuple[str, str]]) -> None:
    """By the libraries' own functions, or by a name that says what is saved."""
    assert recognise_frames([*frames, TRAIN, MAIN]) is Phase.CHECKPOINT


@pytest.mark.parametrize("frame", EVALUATIONS)
def test_an_evaluation_by_the_name_of_its_function(frame: tuple[str, str]) -> None:
    """As a whole word, in anybody's code."""
    assert recognise_frames([("forward", "/home/u/model.py"), frame, MAIN]) is Phase.EVALUATION


@pytest.mark.parametrize("frame", FALSE_FRIENDS)
def test_what_only_sounds_like_it_is_plain_training(frame: tuple[str, str]) -> None:
    """Also what wraps compiled code for as long as it runs."""
    assert recognise_frames([("forward", "/home/u/model.py"), frame, TRAIN, MAIN]) is None


@pytest.mark.parametrize("frame", COMPILATIONS)
def test_a_compilation(frame: tuple[str, str]) -> None:
    """Also one that begins in the middle of an evaluation or a backward pass."""
    outer = ("backward", f"{SITE}/torch/_tensor.py")
    assert recognise_frames([frame, outer, TRAIN, MAIN]) is Phase.COMPILATION
    assert recognise_frames([frame, ("evaluate", "/home/u/train.py"), MAIN]) is Phase.COMPILATION


@pytest.mark.parametrize("inner", TRAINING)
def test_training_within_anything_is_training(inner: tuple[str, str]) -> None:
    """A collective that hangs in an evaluation or a save gets no longer limit."""
    for outer in ("evaluate", "save_checkpoint"):
        assert recognise_frames([inner, (outer, "/home/u/train.py"), MAIN]) is None


def test_loading_is_the_start_only_where_nothing_else_goes_on() -> None:
    """A data set that is read with torch.load, and what is imported late, are no start."""
    load = ("load", f"{SITE}/torch/serialization.py")
    late = ("_find_and_load", "<frozen importlib._bootstrap>")
    fetch = ("fetch", f"{SITE}/torch/utils/data/_utils/fetch.py")
    assert recognise_frames([load, MAIN]) is Phase.START_UP
    assert recognise_frames([("from_pretrained", f"{SITE}/transformers/m.py"), MAIN]) is Phase.START_UP
    assert recognise_frames([("load_state_dict", f"{SITE}/torch/nn/modules/module.py")]) is Phase.START_UP
    assert recognise_frames([("_map_single", f"{SITE}/datasets/arrow_dataset.py"), MAIN]) is Phase.START_UP
    assert recognise_frames([("init_process_group", C10D), MAIN]) is Phase.START_UP
    assert recognise_frames([late, MAIN]) is Phase.START_UP
    assert recognise_frames([load, fetch, TRAIN]) is None
    assert recognise_frames([load, fetch, ("evaluate", "/home/u/train.py")]) is Phase.EVALUATION
    assert recognise_frames([late, ("step", f"{SITE}/torch/optim/adamw.py"), TRAIN]) is None


def test_the_end() -> None:
    """What uploads the result or closes the run."""
    assert recognise_frames([("finish", f"{SITE}/wandb/sdk/wandb_run.py"), MAIN]) is Phase.FINAL
    assert recognise_frames([("push_to_hub", f"{SITE}/transformers/trainer.py"), MAIN]) is Phase.FINAL


def test_no_frames_say_nothing() -> None:
    """And neither do those of a plain loop."""
    assert recognise_frames([]) is None
    assert recognise_frames([("forward", "/home/u/model.py"), TRAIN, MAIN]) is None


@pytest.mark.parametrize(
    ("frame", "waits"),
    [
        (("join", "/x/site-packages/torch/multiprocessing/spawn.py"), True),
        (("ProcessContext.join", "/x/site-packages/torch/multiprocessing/spawn.py"), True),
        (("poll", "/usr/lib/python3.11/multiprocessing/popen_fork.py"), True),
        (("_try_wait", "/usr/lib/python3.11/subprocess.py"), True),
        (("_communicate", "/usr/lib/python3.11/subprocess.py"), True),
        (("_try_get_data", "/x/torch/utils/data/dataloader.py"), False),
        (("wait", "/usr/lib/python3.11/threading.py"), False),
        (("all_reduce", "/x/torch/distributed/distributed_c10d.py"), False),
        (("join", "/home/ann/train.py"), False),
    ],
)
def test_who_only_waits_for_a_child(frame: tuple[str, str], waits: bool) -> None:
    """A join of a process that it has started; never a queue, a lock, a thread or a collective."""
    inner, outer = ("select", "/usr/lib/python3.11/selectors.py"), ("main", "/home/ann/train.py")
    assert waits_for_child([inner, frame, outer]) is waits


@pytest.mark.parametrize(
    ("frame", "waits"),
    [
        (("join", "/usr/lib/python3.10/threading.py"), True),
        (("Thread.join", "/usr/lib/python3.11/threading.py"), True),
        (("Future.result", "/usr/lib/python3.11/concurrent/futures/_base.py"), True),
        (("Executor.map.<locals>.result_iterator", "/usr/lib/python3.11/concurrent/futures/_base.py"), True),
        (("ThreadPoolExecutor.shutdown", "/usr/lib/python3.11/concurrent/futures/thread.py"), True),
        (("Condition.wait", "/usr/lib/python3.11/threading.py"), False),
        (("Queue.join", "/usr/lib/python3.11/queue.py"), False),
        (("run", "/usr/lib/python3.11/threading.py"), False),
        (("result", "/home/ann/train.py"), False),
    ],
)
def test_who_only_waits_for_a_thread(frame: tuple[str, str], waits: bool) -> None:
    """For its end or its result; never for a queue or a lock, where a data loader hangs."""
    inner, outer = ("Condition.wait", "/usr/lib/python3.11/threading.py"), ("main", "/home/ann/train.py")
    assert waits_for_thread([inner, frame, outer]) is waits


@pytest.mark.parametrize("function", ["from_pretrained", "PreTrainedModel.from_pretrained"])
def test_a_method_counts_with_and_without_its_class(function: str) -> None:
    """py-spy names the class from Python 3.11 on."""
    assert recognise_frames([(function, "/x/site-packages/transformers/m.py")]) is Phase.START_UP
