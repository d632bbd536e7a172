"""The phrases of frameworks that tell a phase: a table to extend, and no code of any framework."""

from __future__ import annotations

import re

from slurm_guard.model.phase import Phase

_CHECKPOINT_FILE = r"\.(?:pt|pth|ckpt|bin|safetensors|distcp|npz|h5|keras|msgpack|tar|pkl)\b"
_OURS = (
    r"(?:the |an? |in |from |current |final |best |latest |last |new |full |entire |sharded |fsdp |lora |hf "
    r"|unwrapped |trained |merged |converted |pre-?trained |base |policy |reference |reward |model "
    r"|safetensors |release |distributed |saved |cached |train |training |validation |all |each "
    r"|gpt |bert |t5 )*"
)
_BAR = r"[\w .,#()/=-]{0,60}:?\s{0,9}(?:\d{1,3}%|\||\[\s{0,9}\d{1,9}/)"

Phrase = tuple[Phase, str, str]


def _phrase(phase: Phase, words: str, *rest: str) -> Phrase:
    return phase, words, "".join(rest)


PHRASES: tuple[Phrase, ...] = (
    _phrase(
        Phase.EVALUATION, "running", r" (?:the |a |full |final |initial )*(?:eval|evaluation|validation)\b"
    ),
    _phrase(Phase.EVALUATION, "running", r" \w{1,30} requests:"),
    _phrase(
        Phase.EVALUATION,
        "start starting started begin beginning run performing entering",
        r" (?:the |of |a |full |model )*(?:eval|evaluation|evaluating|validation|validating|testing)\b",
        r"(?! (?:every|interval|server|data))",
    ),
    _phrase(Phase.EVALUATION, "start starting inference", r" (?:inference on|done) \d"),
    _phrase(
        Phase.EVALUATION,
        "evaluating validating",
        r"(?:\s{0,4}\.{2,}|\s{0,4}$|:? \d|",
        r" (?:the |current |trained |best |final |ema )*",
        r"(?:model|policy|checkpoint|network|agent|on|at|epoch|step|iteration|validation|val|test|dev)\b",
        rf"| \S{{1,160}}{_CHECKPOINT_FILE})",
    ),
    _phrase(
        Phase.EVALUATION,
        "validation validating evaluation evaluating eval val valid test testing predicting prediction",
        _BAR,
    ),
    _phrase(Phase.EVALUATION, "sanity", r" check(?:ing)?\b"),
    _phrase(Phase.EVALUATION, "epoch iter", r"\((?:val|test)\)"),
    _phrase(Phase.EVALUATION, "eval_start", ""),
    _phrase(Phase.TRAINING, "eval_stop", ""),
    _phrase(Phase.FINAL, "run_stop", ""),
    _phrase(Phase.START_UP, "init_start", ""),
    _phrase(
        Phase.TRAINING,
        "finished completed done",
        r" (?:the |running |with |async\w* )*(?:eval|validat|saving|checkpoint|xla compil|compil)",
    ),
    _phrase(
        Phase.TRAINING,
        "evaluation validation compilation",
        r" (?:is |has |was )*(?:done|finished|completed?|ended|took)\b",
    ),
    _phrase(Phase.TRAINING, "successfully", r" (?:saved|wrote|written)\b"),
    _phrase(Phase.TRAINING, "saved wrote", rf" {_OURS}(?:checkpoint|model|state|weights)s?\b"),
    _phrase(Phase.TRAINING, "saved", rf" \S{{1,200}}{_CHECKPOINT_FILE}"),
    _phrase(Phase.TRAINING, "the best", r" (?:best )?checkpoint .{0,200}\bis saved\b"),
    _phrase(Phase.CHECKPOINT, "checkpoint", r" \S{1,200} is about to be saved"),
    _phrase(Phase.TRAINING, "checkpoint", r".{0,200}\b(?:saved|is ready|written|completed?|finished)\b"),
    _phrase(Phase.TRAINING, "model", r" .{0,120}\bsaved (?:to|at)\b"),
    _phrase(Phase.TRAINING, "compiled", r" .{0,80}\b(?:in|after) \d"),
    _phrase(
        Phase.CHECKPOINT,
        "saving writing storing dumping persisting serializing uploading",
        r" (?!.{0,200}\bevery\b).{0,80}?\bcheckpoint(?:s|ing)?\b(?!\s{0,4}[=:] ?(?:true|false|none|\d))",
    ),
    _phrase(
        Phase.CHECKPOINT,
        "saving writing storing dumping persisting serializing",
        rf" (?!.{{0,200}}\bevery\b){_OURS}(?:models?|states?|weights|optimizer|ema|pipeline|adapter",
        r"|actor|critic|snapshot|parameters|params|state_dict|random states?|scheduler)\b(?!\s{0,4}[:=])",
    ),
    _phrase(Phase.CHECKPOINT, "saving writing storing dumping", rf" .{{0,200}}?{_CHECKPOINT_FILE}"),
    _phrase(Phase.CHECKPOINT, "preparing", r" to save\b"),
    _phrase(
        Phase.CHECKPOINT,
        "checkpointing",
        r"(?:\s{0,4}\.{2,}|\s{0,4}$| (?:at|to|the|model|state|step|epoch|iteration)\b)",
    ),
    _phrase(
        Phase.CHECKPOINT,
        "start starting started begin beginning",
        r" (?:an |the |async\w* )*(?:saving )?checkpoint(?:ing)?",
        r"(?: save| saving| at\b| for\b|\s{0,4}\.{2,}|\s{0,4}$)",
    ),
    _phrase(
        Phase.CHECKPOINT,
        "epoch",
        r" \d{1,9}(?:, global step \d{1,18})?: .{0,200}\bsaving model to\b",
    ),
    _phrase(
        Phase.COMPILATION,
        "compiling recompiling",
        r"(?:\s{0,4}\.{2,}|\s{0,4}$|: | (?:the |a |and |each |all )*",
        r"(?:models?|functions?|graph|module|kernels?|fused|dataset index|extension|train\w*|step|layers?",
        r"|blocks?|transformer\w*|program|loss|loading|jit\w*|forward|backward|subgraph)\b",
        r"|.{0,80}\b(?:torch\.compile|xla|inductor|triton|jit|cuda|dynamo)\b)",
    ),
    _phrase(Phase.COMPILATION, "using applying enabling running", r" torch\.compile\b"),
    _phrase(
        Phase.COMPILATION,
        "torch",
        r"\.compile(?:\s{0,4}\.{2,}|:? (?:started|starting|the model|model|may take|takes)\b)",
    ),
    _phrase(Phase.COMPILATION, "autotune", r" \w{1,40}\("),
    _phrase(Phase.COMPILATION, "singleprocess subprocess", r" autotune benchmarking"),
    _phrase(
        Phase.COMPILATION,
        "autotuning",
        r"(?:\s{0,4}\.{2,}|: | (?:kernels?|triton|cudnn|matmul|the|for|of)\b)",
    ),
    _phrase(Phase.COMPILATION, "xla compilation", r" (?:compil\w{1,8}|started|of)\b"),
    _phrase(Phase.COMPILATION, "very", r" slow compile"),
    _phrase(
        Phase.COMPILATION,
        "capturing capture start starting begin",
        r" (?:the )?(?:[\w ]{0,40} )?cuda ?graphs?\b",
    ),
    _phrase(Phase.COMPILATION, "cuda", r" ?graphs? captur(?:e|ing)(?! (?:finished|took|done|completed?))\b"),
    _phrase(Phase.COMPILATION, "building", r" .{0,60}\b(?:kernels?|extension module)\b"),
    _phrase(Phase.COMPILATION, "emitting", r" ninja build file"),
    _phrase(
        Phase.START_UP,
        "loading",
        rf" {_OURS}(?:checkpoints?|models?|weights|shards?|states?|datasets?|data|tokenizer|params",
        r"|parameters|optimizer|index|indices|vocab\w{0,6}|extension|features|annotations|samples|indexed|pipeline|adapter)\b",
    ),
    _phrase(Phase.START_UP, "loading", rf" .{{0,200}}?{_CHECKPOINT_FILE}"),
    _phrase(
        Phase.START_UP,
        "resuming restoring",
        r" (?:training |model |states? |run |optimizer )*(?:from|checkpoint)\b",
    ),
    _phrase(
        Phase.START_UP,
        "building",
        rf" {_OURS}(?:train\w{{0,8}}|datasets?|index|indices|models?|vocab\w{{0,6}}|shuffle",
        r"|sample|doc\w{0,6}|network|tokenizer|data ?loaders?|transformer|optimizer)\b",
    ),
    _phrase(
        Phase.START_UP,
        "initializing initialized initialising",
        r" (?:the |torch ?)*(?:distributed|process|nccl|model|torchbackend|backend|weights|optimizer|tensor",
        r"|pipeline|data|megatron|deepspeed|ray|fsdp|parallel|cuda|amp|trainer|tokenizer|engine)\b",
    ),
    _phrase(Phase.START_UP, "nccl", r" version \d"),
    _phrase(
        Phase.START_UP,
        "setting",
        r" up (?:the )?(?:distributed|model|data\w{0,8}|train\w{0,4}|tokenizer|process|trainer)",
    ),
    _phrase(
        Phase.START_UP,
        "map filter tokenizing grouping packing preprocessing downloading fetching extracting converting",
        r"[^|%]{0,80}?\s{0,4}\d{1,3}%\|",
    ),
    _phrase(
        Phase.START_UP,
        "running saving generating",
        r" (?:tokenizer on|the dataset|\w{1,20} split)[^|%]{0,80}?(?:\d{1,3}%\||\d{1,18} examples)",
    ),
    _phrase(
        Phase.FINAL,
        "training",
        r" (?:is |has |run |job |loop |process |was )*(?:been )?(?:completed?|finished|done|ended|over)\b",
        r"(?!.{0,12}\b(?:epoch|step|iteration|batch))",
    ),
    _phrase(Phase.FINAL, "training total", r" (?:training )?time:? \d{1,4}:\d\d"),
    _phrase(
        Phase.FINAL,
        "finished completed done end",
        r" (?:the |of |with |all )*(?:pre-?|fine-?)?(?:training|tuning|epochs)\b",
        r"(?!.{0,8}\b(?:epoch|step|iteration|batch))",
    ),
    _phrase(Phase.FINAL, "trainer", r"\.fit\W? stopped"),
    _phrase(Phase.FINAL, "train", r" metrics \*{3,}"),
    _phrase(Phase.FINAL, "exiting", r" (?:program|training)\b"),
    _phrase(
        Phase.FINAL, "earlystopping early", r":? (?:training stopped|stopping(?: at| after|[.!]|\s{0,4}$))"
    ),
    _phrase(Phase.FINAL, "epoch", r" \d{1,9}: early stopping"),
    _phrase(Phase.FINAL, "pushing", r" .{0,80}\b(?:hub|hugging ?face|hf)\b"),
    _phrase(Phase.FINAL, "uploading upload", r" (?!\s{0,4}[:=])"),
    _phrase(
        Phase.FINAL,
        "wandb",
        r": (?:waiting for w&b|synced|run (?:summary|history)|\W{0,4}uploading|\W{0,4}[\d.]{1,12} ?mb of)",
    ),
)
"""Phase, the words that the phrase may begin with, and what follows them (lower case). The first counts."""

PHASE_WORDS = (
    "val", "rain", "sav", "checkpoint", "compil", "autotun", "graph", "load", "build",
    "initializ", "nccl version", "examples/s", "wandb: ", "pushing",
    "writing model",
)  # fmt: skip
"""Every line with a phrase holds one of these, or one of the words of interest of a record."""

BRACKETED = (
    (re.compile(r"save_checkpoint\b"), Phase.CHECKPOINT),
    (re.compile(r"after training is done|exiting program"), Phase.FINAL),
)
"""What Megatron says in brackets."""
