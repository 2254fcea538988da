"""Where the time of a step goes and how much of the device's peak it reaches: columns of metrics.jsonl."""

import time
from collections import Counter
from itertools import pairwise
from typing import Any

import torch

from ...devices import peak_flops
from ...models.decoder import Decoder
from ..plan import flops_per_token
from .hooks import Row
from .summary import peak_memory

PARTS = ("batch", "model", "optimizer")


class StepTimes:
    """Times between two readings of the losses. On a GPU the parts of a step end with CUDA events, which are read after
    the losses: so nothing waits for them."""

    def __init__(self, model: Decoder, dtype: str | None, device: torch.device, ranks: int) -> None:
        self.device = device
        peak = ranks * peak_flops(device, dtype)
        self.mfu_of_a_token = flops_per_token(model) / peak if peak else None
        """MFU at one token per second."""
        self.start()

    def start(self) -> None:
        """The next steps begin now."""
        self.begun, self.marks = time.monotonic(), list[tuple[str, Any]]()

    def mark(self, part: str) -> None:
        """End a part of a step: it is named, and lasted from the mark before to now."""
        place: Any = time.perf_counter()
        if self.device.type == "cuda":
            place = torch.cuda.Event(enable_timing=True)
            place.record()
        self.marks.append((part, place))

    def add(self, rows: list[Row], seconds: float) -> float:
        """Spread the time since `start` evenly over the rows of its steps. seconds: of training before these; returns
        the seconds of training so far."""
        each = (time.monotonic() - self.begun) / len(rows)
        sums = Counter[str]()
        for (_, begun), (part, ended) in pairwise(self.marks):
            sums[part] += begun.elapsed_time(ended) / 1e3 if self.device.type == "cuda" else ended - begun
        shared = {f"{part}_seconds": sums[part] / len(rows) for part in PARTS}
        shared["peak_memory_bytes"] = peak_memory(self.device)
        for row in rows:
            seconds += each
            speed = row["tokens"] / row["step"] / max(1e-9, each)
            row |= {"tokens_per_second": speed, "seconds": seconds, **shared}
            if self.mfu_of_a_token:
                row["mfu"] = speed * self.mfu_of_a_token
        return seconds
