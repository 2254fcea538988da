"""transformers' own common tests on our classes, by hand, on a copy of its tests that is no part of this project.

    python tests/hf/common_tests.py FOLDER [-k NAMES] [--table FILE]

FOLDER holds `tests/` of transformers in the installed release, or of the nearest commit to be had, unmodified; of a
source distribution, which leaves some out, the rest runs (stand_ins.py). Everything that its causal language models are
tested with runs on one scheme of each kind, but for the tests of generation on an encoder; those on two schemes more;
its own Llama, with initial weights as large as ours, where a tolerance is absolute. Prints a table of every test with
its result; needs pytest and `parameterized`.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

SCHEMES = ("geonorm", "ngpt", "siamese", "hyper")
"""Schemes that run everything: one stream, constraints on weights, several streams."""
GENERATION = ("pre", "post")
"""Schemes that run the generation tests."""

if "GEONORM_THEIRS" in os.environ:
    sys.path.insert(0, os.environ["GEONORM_THEIRS"])
    import unittest

    from stand_ins import stand_in  # type: ignore[import-not-found]

    stand_in()
    from tests.causal_lm_tester import CausalLMModelTest, CausalLMModelTester  # type: ignore[import-not-found]
    from tests.generation.test_utils import GenerationTesterMixin  # type: ignore[import-not-found]
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
    from transformers.models.auto import modeling_auto

    from geonorm import hf

    # the tests look in transformers' tables of names whether a class takes labels
    for table, kind in (
        ("", "Model"),
        ("_FOR_CAUSAL_LM", "ForCausalLM"),
        ("_FOR_MASKED_LM", "ForMaskedLM"),
        ("_FOR_SEQUENCE_CLASSIFICATION", "ForSequenceClassification"),
    ):
        getattr(modeling_auto, f"MODEL{table}_MAPPING_NAMES")["geonorm"] = f"GeoNorm{kind}"

    class Tester(CausalLMModelTester):
        base_model_class = hf.GeoNormModel
        config_class = hf.GeoNormConfig
        causal_lm_class = hf.GeoNormForCausalLM
        sequence_classification_class = hf.GeoNormForSequenceClassification

    TESTS = {test for test in dir(CausalLMModelTest) if test.startswith("test_")}

    def case(name: str, left_out: set[str]) -> type:
        """transformers' tests but for some, for a scheme."""
        body = {"model_tester_class": type("Tester", (Tester,), {"scheme": name}), **dict.fromkeys(left_out)}
        return type(f"Test{name.capitalize()}", (CausalLMModelTest, unittest.TestCase), body)

    class LlamaTester(CausalLMModelTester):
        base_model_class, config_class, causal_lm_class = LlamaModel, LlamaConfig, LlamaForCausalLM

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.initializer_range = self.hidden_size**-0.5

    def llama() -> type:
        """Their Llama with initial weights as large as ours, in the tests whose tolerance is absolute."""
        left_out = dict.fromkeys(test for test in TESTS if "padding_free" not in test)
        bases = (CausalLMModelTest, unittest.TestCase)
        return type("TestLlama", bases, {**left_out, "model_tester_class": LlamaTester})

    TestLlama = llama()
    for scheme in SCHEMES:
        globals()[f"Test{scheme.capitalize()}"] = case(scheme, set())

    set_any = hf.GeoNormConfig.__setattr__

    def set_what_it_can_have(config: Any, name: str, value: Any) -> None:
        """Theirs set a window wherever a configuration has the name; ours refuses one with an encoder."""
        set_any(config, name, value if name != "sliding_window" or config.is_causal else None)

    hf.GeoNormConfig.__setattr__ = set_what_it_can_have  # type: ignore[method-assign, assignment]

    class MaskedTester(Tester):
        causal_lm_class = hf.GeoNormForMaskedLM
        is_causal = False

    def masked() -> type:
        """What is no test of writing, on an encoder under geonorm."""
        left_out = dict.fromkeys(test for test in TESTS if hasattr(GenerationTesterMixin, test))
        body = {"model_tester_class": MaskedTester, **left_out}
        return type("TestMasked", (CausalLMModelTest, unittest.TestCase), body)

    TestMasked = masked()
    for scheme in GENERATION:
        left = {test for test in TESTS if not hasattr(GenerationTesterMixin, test)}
        globals()[f"Test{scheme.capitalize()}"] = case(scheme, left)


class Results:
    """A plugin of pytest that keeps the result of every test: passed, failed, or skipped with the reason."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, str]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: Any) -> None:
        _, case, test = report.nodeid.split("::")
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.found[test][case] = f"skipped: {plain(reason)}"
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.found[test][case] = f"failed: {str(crash.message if crash else report.longrepr).splitlines()[0][:200]}"
        elif report.when == "call":
            self.found[test].setdefault(case, "passed")
        if report.failed or report.duration > 5:
            print(f"\n{test} {self.found[test].get(case)} ({report.duration:.0f} s)", file=sys.stderr)

    def table(self) -> str:
        """Markdown: what passed, what was skipped and why, for the cases together whose results are the same."""
        alike: dict[str, list[str]] = defaultdict(list)
        for case in sorted({case for results in self.found.values() for case in results}):
            groups: dict[str, list[str]] = defaultdict(list)
            for test, results in sorted(self.found.items()):
                if case in results:
                    groups[results[case]].append(test)
            counts = Counter({result.partition(":")[0]: 0 for result in groups})
            for result, tests in groups.items():
                counts[result.partition(":")[0]] += len(tests)
            rows = [
                ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts)),
                "",
                "| result | tests |",
                "|---|---|",
            ]
            rows += [f"| {result.replace('|', '/')} | {listed(tests)} |" for result, tests in sorted(groups.items())]
            alike["\n".join(rows)].append(case.removeprefix("Test").lower())
        return "\n\n".join(f"**{', '.join(cases)}**: {text}" for text, cases in alike.items())


def plain(reason: str) -> str:
    """A reason without the names of test and class, so that tests with one reason stand together."""
    reason = re.sub(r"^Test\w+::\w+ is skipped: ", "", reason.removeprefix("Skipped: ").split("\n")[0])
    reason = re.sub(r"^`[\w-]+` is not in `self.pipeline_model_mapping`.*", "a task of other models", reason)
    reason = re.sub(r" for `[\w-]+`\.$|<class '[\w.]+'> |Set \w+ = None to run all tests\.$", "", reason)
    return re.sub(r" \(enabled: .*\)\.", " (a list of transformers' own)", reason).strip()


def listed(tests: list[str]) -> str:
    """Names without their prefix; variants of one test (a number and words behind its name) counted."""
    names = Counter(re.sub(r"_\d+(_.*)?$", "", test.removeprefix("test_")) for test in tests)
    return ", ".join(f"{name} ({count})" if count > 1 else name for name, count in names.items())


def main(arguments: list[str]) -> int:
    import pytest

    folder, *rest = arguments
    table = Path(rest.pop(rest.index("--table") + 1)).absolute() if "--table" in rest else None
    rest = [word for word in rest if word != "--table"]
    os.environ["GEONORM_THEIRS"] = str(Path(folder).absolute())
    here = str(Path(__file__).absolute())
    os.chdir(folder)
    results = Results()
    status = pytest.main(
        [here, "-q", "-c", os.devnull, "--rootdir", folder, "--noconftest", "-p", "no:cacheprovider", *rest], [results]
    )
    if table:
        table.write_text(results.table() + "\n", encoding="utf-8")
    else:
        print(results.table())
    return int(status)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
