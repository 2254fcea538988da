"""Golden losses: what every scheme's tiny model reaches in 20 steps, as recorded once.

losses.json holds the losses before steps 1, 5, 10 and 20, computed in fp64 from weights drawn in fp32. After a change
that is meant to move them, `python -m tests.golden.test_golden` writes the file again and prints how far fp32 is from
it; the difference goes into the commit.

The test trains in fp32 and allows a relative difference of 2e-5, because kernels and vector widths of machines round
differently. On the machine of the record fp32 differed from fp64 by at most 6e-7. A change of 1 % in a scheme's step
moves the last loss by more than five times what is allowed (tested). AdamW's eps is 1e-5: with 1e-8 it makes full steps
of gradients that are nothing but rounding. Text and batches are made here; weights come from torch's CPU generator.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm import Decoder, DecoderConfig, names
from geonorm.schemes import advance

from ..rows import each

FILE = Path(__file__).with_name("losses.json")
STEPS, TOLD = 20, (1, 5, 10, 20)
VARIANTS = [
    "pre(entry=embedding)",
    "pre(decay=harmonic)",
    "post(decay=sqrt, final=norm)",
    "peri(layer_scalar=learned)",
    "geonorm(decay=sqrt)",
    "geonorm(input=norm, update=norm, index=sublayer)",
    "geonorm(decay_on=update, retraction=cayley, learn=step)",
    "geonorm(update=unit, decay=sqrt, index=sublayer)",
    "geonorm(learn=affine, alpha=0.5)",  # alpha = 1 would put the first block on the kink of its clamp
    "first(hybrid(input=norm), hybrid)",
    "per_kind(geonorm, peri)",
    "mix(share=0.5)",
    "mix(ngpt, geonorm, share=0.5)",
    "siamese(sum=norm, decay=sqrt, alpha=0.7071067811865476)",
    "hyper(n=2, dynamic=none)",
    "mhc(mix=permutation, n=3)",
    "mhc(mix=identity)",
    "mhc(mix=identity, head=learned)",
    "attnres(blocks=2)",
    "attnres(values=norm)",
    "prores(geonorm, steps=5)",
    "prores(mhc, steps=5)",
]
LAYOUTS = ["pre", "geonorm(index=sublayer)", "siamese", "hyper", "attnres"]
CASES = [*names(), *VARIANTS, *(f"{scheme} parallel" for scheme in LAYOUTS)]


def text(step: int) -> Tensor:
    """4 sequences of 17 tokens below 61, each token a function of the one before and of a slow counter."""
    rows = []
    for row in range(4):
        token, sequence = (7 * step + 13 * row) % 61, []
        for position in range(17):
            sequence.append(token)
            token = (3 * token + 5 * ((step + row + position) // 9) + 1) % 61
        rows.append(sequence)
    return torch.tensor(rows)


def losses(case: str, dtype: torch.dtype) -> list[float]:
    scheme = case.removesuffix(" parallel")
    block = "sequential" if scheme == case else "parallel"
    torch.manual_seed(0)
    shape: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "hidden": 48, "vocab_size": 61, "context": 16}
    model = Decoder(DecoderConfig(scheme, block=block, **shape)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1)
    found = []
    for step in range(STEPS):
        ids = text(step)
        optimizer.zero_grad()
        loss = model.loss(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        model.constrain()
        advance(model)
        found.append(loss.item())
    return [found[step - 1] for step in TOLD]


def recorded() -> dict[str, list[float]]:
    values: dict[str, list[float]] = json.loads(FILE.read_text(encoding="utf-8"))
    return values


def test_every_scheme_is_on_record() -> None:
    assert list(recorded()) == CASES
    assert all(values[-1] < values[0] - 0.05 for values in recorded().values()), "twenty steps teach something"


@each("case", CASES)
def test_losses_are_the_recorded_ones(case: str) -> None:
    assert losses(case, torch.float32) == pytest.approx(recorded()[case], rel=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_record_in_its_own_precision(case: str) -> None:
    assert losses(case, torch.float64) == pytest.approx(recorded()[case], rel=1e-9)


def test_a_small_change_of_a_scheme_shows() -> None:
    for case, changed in (("geonorm", "geonorm(alpha=1.01)"), ("pre", "pre(alpha=1.01)")):
        assert abs(losses(changed, torch.float32)[-1] / recorded()[case][-1] - 1) > 1e-4


def write() -> None:
    """Writes losses.json anew and says how far fp32 is from it."""
    values, worst = {}, 0.0
    for case in CASES:
        values[case] = losses(case, torch.float64)
        rounded = losses(case, torch.float32)
        far = max(abs(a / b - 1) for a, b in zip(rounded, values[case], strict=True))
        worst = max(worst, far)
        print(f"{far:.1e}  {values[case][-1]:.4f}  {case}")
    rows = ",\n".join(f" {json.dumps(case)}: {json.dumps(found)}" for case, found in values.items())
    FILE.write_text("{\n" + rows + "\n}\n", encoding="utf-8")
    print(f"fp32 differs from fp64 by at most {worst:.1e}")


if __name__ == "__main__":
    write()
