"""Writes the course of a training as the common frameworks do: bytes, moment by moment."""

from __future__ import annotations

import random
from collections.abc import Iterator

from training_bar import Bar, BarTimed, Lightning
from training_course import Course
from training_format import Format
from training_text import DeepSpeed, Fairseq, KeyValue, Megatron, MmEngine, NanoGpt, TorchTitan
from training_value import Csv, HuggingFace, HuggingFaceTimed, JsonLines, Yolo

FORMATS: dict[str, type[Format]] = {
    "hf": HuggingFace,
    "hf-timed": HuggingFaceTimed,
    "megatron": Megatron,
    "tqdm": Bar,
    "tqdm-timed": BarTimed,
    "lightning": Lightning,
    "torchtitan": TorchTitan,
    "nanogpt": NanoGpt,
    "json": JsonLines,
    "csv": Csv,
    "key-value": KeyValue,
    "deepspeed": DeepSpeed,
    "yolo": Yolo,
    "mmengine": MmEngine,
    "fairseq": Fairseq,
}


def write_log(name: str, course: Course, chance: random.Random) -> Iterator[bytes]:
    """The log of this course in this format, moment by moment."""
    form = FORMATS[name](course)
    if not form.has_skips:
        course.warm_up_skips, course.skips = 0, frozenset()
    for moment in course.moments(chance):
        yield form.write(moment)
