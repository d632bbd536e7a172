"""What a rank is doing, from the functions that its Python stack is in.

The innermost frame that says anything decides, except that reading files at start-up, and uploading at
the end, are also parts of other work: there a frame further out has the last word. An optimizer, a
backward pass and a collective are training: a rank that hangs in one of them gets no longer limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_guard.model.phase import Phase

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_ANY = re.compile("")


@dataclass(frozen=True, slots=True)
class _Rule:
    """Frames of these files and functions mean this phase, None for plain training. A `weak` one holds
    where no frame further out says something else."""

    phase: Phase | None
    path: re.Pattern[str]
    function: re.Pattern[str]
    weak: bool = False


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _rule(phase: Phase | None, path: str, function: str = "", *, weak: bool = False) -> _Rule:
    return _Rule(phase, re.compile(path), re.compile(function) if function else _ANY, weak)


_RULES = (
    # Wrappers that stay in the stack while compiled code runs are no compilation.
    _rule(Phase.COMPILATION, r"torch/_dynamo/(convert_frame|symbolic_convert|output_graph)\.py$"),
    _rule(Phase.COMPILATION, r"torch/_inductor/compile_fx\w*\.py$", r"compile(?!d)"),
    _rule(Phase.COMPILATION, r"torch/_inductor/(graph|scheduler|lowering|async_compile|cpp_builder)\.py$"),
    _rule(Phase.COMPILATION, r"torch/_inductor/codegen/"),
    _rule(Phase.COMPILATION, r"torch/_inductor/(codecache|runtime/\w+)\.py$",
          r"^_?(compile|load|precompile|autotune|bench|coordinate_descent)"),
    _rule(Phase.COMPILATION, r"triton/compiler/(code_generator\.py$|compiler\.py$)",
          r"^(compile|make_ir|parse|visit\w*|ast_to_ttir)$"),
    _rule(Phase.COMPILATION, r"triton/backends/\w+/compiler\.py$"),
    _rule(Phase.COMPILATION, r"triton/runtime/autotuner\.py$", r"bench"),
    _rule(Phase.COMPILATION, r"torch/utils/cpp_extension\.py$|deepspeed/ops/op_builder/"),
    _rule(Phase.COMPILATION, r"torch_xla/(_dynamo|core/dynamo_bridge)|jax/_src/compiler\.py$"),
    _rule(Phase.CHECKPOINT, r"torch/serialization\.py$", r"save"),
    _rule(Phase.CHECKPOINT, r"torch/distributed/checkpoint/.*saver\.py$"),
    _rule(Phase.CHECKPOINT, r"safetensors/", r"^_?save"),
    _rule(Phase.EVALUATION, r"/loops/(evaluation|prediction)_loop\.py$"),
    _rule(Phase.CHECKPOINT, r"slurm_guard/(checkpoint|training)/", r"^(_save|write_)"),
    _rule(Phase.START_UP, r"torch/serialization\.py$", r"load", weak=True),
    _rule(Phase.START_UP, r"torch/distributed/checkpoint/.*loader\.py$", weak=True),
    _rule(Phase.START_UP, r"safetensors/", r"^_?load", weak=True),
    _rule(Phase.START_UP, r"datasets/(load|builder|arrow_dataset|dataset_dict)\.py$",
          r"^_?(load_|map|filter|download_and_prepare|prepare)", weak=True),
    _rule(Phase.START_UP, r"torch/distributed/(distributed_c10d|rendezvous)\.py$",
          r"^(init_process_group|\w*rendezvous\w*)$", weak=True),
    _rule(Phase.START_UP, r"^<frozen importlib", weak=True),
    _rule(Phase.FINAL, r"wandb/", r"finish|_atexit", weak=True),
    _rule(Phase.FINAL, r"huggingface_hub/", r"upload|push|commit", weak=True),
    _rule(None, r"torch/optim/", r"^(?!.*state)"),
    _rule(None, r"torch/(autograd/|_tensor\.py$)", r"backward"),
    _rule(None, r"torch/distributed/(distributed_c10d|_functional_collectives)\.py$|torch/distributed/nn/"),
    _rule(None, r"deepspeed/comm/|horovod/torch/mpi_ops\.py$"),
)  # fmt: skip

# Names mean nothing in these: they validate arguments, evaluate expressions, save random states.
_FOREIGN = re.compile(
    r"/lib/python3[.\d]*/(?!(site|dist)-packages)|-packages/(torch|torch_xla|triton|numpy|pandas|scipy|sympy"
    r"|numba|pydantic|pydantic_core|jsonschema|omegaconf|hydra|_pytest|pluggy|pytest|absl|jax)/|^<frozen"
)
_LOADER = re.compile(r"torch/utils/data/")
_TEST_FILE = re.compile(r"(^|/)(test_\w*|\w*_test|conftest)\.py$")

_SAVING = _words("save saving write dump upload")
_LOADING = _words("load loading restore resume")
_SAVED = _words("checkpoint checkpoints ckpt ckpts pretrained model weights snapshot state optimizer")
_HINTS = _words("maybe should is can needs if args config path paths rng random card")
_EVALUATING = _words("eval evaluate evaluation validate validation val")
_WHAT = _words("run do epoch epochs loop step model one batch dataset iter")
_NAMED = _words("evaluate evaluation validation validate")
# What is built, asked, parsed or told about an evaluation is none.
_NOT_EVALUATING = _words(
    "maybe should is can needs need if get set build make create init setup prepare log print format parse "
    "register args arguments config configs cfg input inputs params parameters options kwargs schema shape "
    "shapes type types expr expression str string settings name names path paths token tokens mode metric "
    "metrics frame dataloader dataloaders loader loaders"
)
_TESTING = re.compile(r"^_?((run|do)_)?test(_(epoch|step|loop|model|one_epoch|evaluation))?$|^estimate_loss$")
_FINISHING = re.compile(r"^_?(push_to_hub|upload_(folder|to_hub|artifacts?)|end_training)$")


_WAITING = re.compile(r"(^|/)(multiprocessing/popen_\w+|torch/multiprocessing/spawn|subprocess)\.py$")
_JOINING = re.compile(r"^_?(try_)?(wait|poll|join|communicate)$")

_THREADING = re.compile(r"(^|/)(threading|concurrent/futures/(_base|thread))\.py$")
_THREAD_JOINING = re.compile(r"^(join|result|exception|as_completed|result_iterator|shutdown|_shutdown)$")


def waits_for_child(frames: Sequence[tuple[str, str]]) -> bool:
    """Whether a process with these frames (function, file) only waits for another one that it has started.

    >>> waits_for_child([("select", "/usr/lib/python3.11/selectors.py"),
    ...                  ("ProcessContext.join", "/x/torch/multiprocessing/spawn.py"), ("main", "train.py")])
    True
    """
    return any(_WAITING.search(path) and _JOINING.match(_bare(function)) for function, path in frames)


def waits_for_thread(frames: Sequence[tuple[str, str]]) -> bool:
    """Whether a thread with these frames (function, file) waits for the end or the result of another one.

    >>> waits_for_thread([("Thread.join", "/usr/lib/python3.11/threading.py"), ("main", "train.py")])
    True
    """
    return any(
        _THREADING.search(path) and _THREAD_JOINING.match(_bare(function)) for function, path in frames
    )


def recognise_frames(frames: Sequence[tuple[str, str]]) -> Phase | None:
    """The phase that these frames (function, file; innermost first) are of; None for plain training.

    >>> recognise_frames([("save", "/x/torch/serialization.py"), ("main", "train.py")])
    <Phase.CHECKPOINT: 'checkpoint'>
    >>> recognise_frames([("all_reduce", "/x/torch/distributed/distributed_c10d.py"), ("main", "train.py")])
    """
    weak: Phase | None = None
    for function, path in frames:
        rule = _find_rule(_bare(function), path)
        if rule is None:
            if _LOADER.search(path) and weak is Phase.START_UP:  # a data set that is read, not a checkpoint
                weak = None
        elif not rule.weak:
            return rule.phase
        else:
            weak = weak or rule.phase
    return weak


def _bare(function: str) -> str:
    """`Dataset.map` as `map`: from Python 3.11 on, py-spy names the class too."""
    return function.rpartition(".")[2]


def _find_rule(function: str, path: str) -> _Rule | None:
    for rule in _RULES:
        if rule.path.search(path) and rule.function.search(function):
            return rule
    if _FOREIGN.search(path) and not function.startswith("load_state_dict"):
        return None
    words = frozenset(word.lower() for word in _WORD.findall(function))
    return next((rule for holds, rule in _NAMES if holds(function, words, path)), None)


def _is_saving(function: str, words: frozenset[str], path: str) -> bool:
    del function, path
    return bool(words & _SAVING and words & _SAVED and not words & _HINTS)


def _is_evaluating(function: str, words: frozenset[str], path: str) -> bool:
    if not words & _EVALUATING or words & _NOT_EVALUATING:
        return bool(_TESTING.match(function)) and not _TEST_FILE.search(path)
    return bool(words & _NAMED or words & _WHAT)


def _is_loading(function: str, words: frozenset[str], path: str) -> bool:
    del path
    return function == "from_pretrained" or bool(words & _LOADING and words & _SAVED and not words & _HINTS)


def _is_finishing(function: str, words: frozenset[str], path: str) -> bool:
    del words, path
    return bool(_FINISHING.match(function))


_NAMES: tuple[tuple[Callable[[str, frozenset[str], str], bool], _Rule], ...] = (
    (_is_saving, _rule(Phase.CHECKPOINT, "")),
    (_is_evaluating, _rule(Phase.EVALUATION, "")),
    (_is_loading, _rule(Phase.START_UP, "", weak=True)),
    (_is_finishing, _rule(Phase.FINAL, "", weak=True)),
)
