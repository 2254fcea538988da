"""The playground's simulator in JavaScript against the simulator that it shows; diagrams and equations of the site."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest
import torch
from py_mini_racer import JSEvalException, MiniRacer

import geonorm
from geonorm.schemes.combine import Nested

FOLDER = Path(__file__).parents[1] / "docs" / "playground"
LAWS = {rule["name"]: (rule["law"], rule["read"]) for rule in run_path(str(FOLDER / "laws.py"))["laws"]()}
START: dict[str, Any] = {"tokens": 8, "dim": 3, "beta": 4.0, "init": "uniform", "depth": 12}


@pytest.fixture(scope="module")
def javascript() -> Callable[[str], Any]:
    """Evaluates an expression whose value is JSON, in a page that has loaded the law reader and the simulator."""
    page = MiniRacer()
    for name in ("law.js", "sim.js"):
        page.eval((FOLDER / name).read_text("utf-8"))
    return lambda text: json.loads(page.eval(f"JSON.stringify({text})"))


@pytest.mark.parametrize("causal", [False, True])
def test_it_shows_what_the_simulator_computes(javascript: Callable[[str], Any], causal: bool) -> None:
    """For every scheme with a law, to 1e-6: each token's direction from depth 0 to 20. Laws do not know of the mask."""
    laws = dict([*LAWS.items()][:3]) if causal else LAWS
    result = geonorm.simulate(schemes=list(laws), time=20.0, points=8, seeds=1, keep=["tokens"], causal=causal, **START)
    assert len(LAWS) > 15
    for name, (law, read) in laws.items():
        course = result.trajectories[name]
        times, tokens = course["time"].tolist(), course["tokens"][0]
        apart = int(tokens.isfinite().all(dim=(1, 2)).sum())  # none where they had come together before
        options = json.dumps({"beta": START["beta"], "causal": causal, "depth": START["depth"]})
        path = javascript(f"""(() => {{
            const rule = law({json.dumps(law)}, {json.dumps(read)}), times = {json.dumps(times[:apart])}, seen = [];
            let x = Float64Array.from({json.dumps(tokens[0].flatten().tolist())});
            for (let k = 1; k < times.length; k++) {{
                x = advance(x, 8, times[k - 1], times[k], rule, {options}, 0.02);
                seen.push([...directions(x, 8).theta]);
            }}
            return seen;
        }})()""")
        np.testing.assert_allclose(np.array(path).reshape(-1, 8, 3), tokens[1:apart], atol=1e-6, err_msg=name)


def test_one_step_is_the_scheme(javascript: Callable[[str], Any]) -> None:
    x, u = torch.tensor([[0.8, 0.6]]).double(), torch.tensor([[-0.3, 1.1]]).double()
    says = torch.nn.Linear(2, 2).double()
    torch.nn.init.zeros_(says.weight)
    says.bias.data = u[0]
    for name in ("pre", "post", "peri", "geonorm"):
        layer = geonorm.Residual(says, name, geonorm.Site(0, "attn", 1), dim=2, norm="unit", gains=False, eps=0.0)
        expected = javascript(f"STEPS.{name}({x[0].tolist()}, {u[0].tolist()})")
        np.testing.assert_allclose(layer(x)[0].tolist(), expected, atol=1e-12, err_msg=name)


def test_a_law_from_a_link_is_read_and_never_run(javascript: Callable[[str], Any]) -> None:
    unknown = {f"s = {name}": f"{name} is not known" for name in ("foo", "constructor")} | {"s=r" + "+r" * 300: "long"}
    for text, problem in {**unknown, "s = r;alert(1)": "not understood", "r": "begins with s ="}.items():
        with pytest.raises(JSEvalException, match=f".*{problem}"):
            javascript(f"law({json.dumps(text)})")
    assert javascript("law('s = pi <theta, A>, r’ = r').speed({c: 1})") == pytest.approx(np.pi)


def test_the_latex_of_an_equation_has_the_terms_of_the_definition() -> None:
    latex = run_path(str(FOLDER.parent / "equations.py"))["latex"]
    assert latex("N(x0 - w_mid / sqrt(t)) <= pi^(1/4)") == r"N(x_{0} - w_{\text{mid}} / \sqrt{t}) \le  \pi ^{1/4}"
    for equation in (geonorm.parse(name).about.equation for name in geonorm.names()):
        plain = re.sub(r"\\(text|operatorname|langle|rangle|cdot|le)\b", "", latex(equation))
        assert re.findall("[A-Za-z0-9]", plain) == re.findall("[A-Za-z0-9]", equation)


def test_a_diagram_shows_what_the_definition_does() -> None:
    module = run_path(str(FOLDER.parent / "diagrams.py"))
    look, block = module["look"], module["Block"]
    for name, expected in {
        "pre": block(before=True),
        "peri(alpha=0.5)": block(before=True, update=True, weights=("", "×0.5")),
        "deepnorm": block(after=True, weights=("×2.2", "")),
        "lns": block(before=True, share="×0.5"),
        "geonorm": block(turn=True),
        "orthogonal": block(before=True, tangential=True),
        "mhc": block(streams=4, opaque=True),
        "attnres": block(streams=0, opaque=True),
    }.items():
        assert look(geonorm.parse(name)) == expected, name
    assert all(name in module["PARENTS"] for name in geonorm.names() if not isinstance(geonorm.parse(name), Nested))
