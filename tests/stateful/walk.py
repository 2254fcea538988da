"""Random walks through the life of a run's folder, every command of which an oracle judges.

    python tests/stateful/walk.py --seconds 3600 --seed 7
    python tests/stateful/walk.py --replay "wsd ngpt train:12 damage:7 train:3"

A walk trains, stops, kills, extends, reads and exports one run, and in between damages any file of its folder or
changes any of its settings. ONE invariant: a command that ends with status 0 has the result, bit for bit, of an oracle:
a run of the settings in the folder that nothing has ever disturbed. Any other ends with status 2, one line on stderr
and the folder as it was; a folder that nobody has damaged is never refused. No command takes longer than 20 s or ends
in a traceback.

Commands are forks of this process, which has imported everything: .05 to .3 s each. They are killed, interrupted, held
or out of disk at a file operation of their own that a random number chooses, so that a walk can be run again from its
words. One that fails is shortened by leaving out steps, and printed.
"""

import argparse
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from oracle import READERS, STARTS, TINY, Child, Ended, Moment, Oracle, Violation, answer_of, change_setting  # isort: skip
from oracle import damage_file, digest, home, preload, read, result_of, rows_of, run, snapshot, step_of  # isort: skip
from oracle import summary_of, tamper, write_text  # isort: skip

SCHEMES = """
    pre geonorm(learn=affine) ngpt first(hybrid(input=norm),hybrid) residual_dual hyper attnres nag prores
""".split()
"""Those with streams, weights or constraints of their own, and those that change over training."""


class Walk:
    """One run in a folder of its own, and the steps that a walk can take: methods without a leading underscore."""

    def __init__(self, place: Path, start: str, scheme: str, oracle: Oracle) -> None:
        self.place, self.oracle = place, oracle
        self.folder, self.backup = place / "run", place / "backup"
        self.steps = 6
        self.line = f"{TINY} {STARTS[start]} --scheme {scheme} --out run"
        self.clean = True
        """Nobody has damaged anything since the folder was last right."""
        self.log: list[str] = []
        place.mkdir()
        write_text(place)

    def step(self, rule: str, seed: int) -> None:
        rng = random.Random(seed)
        self.log.append(rule)
        getattr(self, f"rule_{rule}")(rng)

    @property
    def finished(self) -> bool:
        return '"finished"' in "".join(rows_of(self.folder / "summary.json"))

    # Training.

    def begin_anew(self, rng: random.Random) -> None:
        """Removes a run that has finished: nothing happens to it any more."""
        if self.finished and rng.random() < 0.8:
            shutil.rmtree(self.folder)
            self.clean, self.steps = True, 6

    def train_words(self, rng: random.Random, more: int = 0) -> str:
        if (self.folder / "config.yaml").exists() and rng.random() < 0.6:
            return "train --config run/config.yaml" + f" --steps {self.steps + more}" * (more > 0)
        return self.line.replace("--steps 6", f"--steps {self.steps + more}")

    def rule_train(self, rng: random.Random) -> None:
        self.judge_training(*self.run(self.train_words(rng)))

    def rule_stop(self, rng: random.Random) -> None:
        self.begin_anew(rng)
        self.judge_training(*self.run(self.train_words(rng), Moment("stop", draw_count(rng))))

    def rule_kill(self, rng: random.Random) -> None:
        self.begin_anew(rng)
        delay = rng.choice([0, rng.uniform(0, 0.02), rng.uniform(0, 0.2)])
        moment = Moment("kill", draw_count(rng), delay)
        ended, before = self.run(self.train_words(rng), moment)
        if ended.status is not None:
            self.judge_training(ended, before)

    def rule_full(self, rng: random.Random) -> None:
        """The disk is full for a moment."""
        self.begin_anew(rng)
        ended, _ = self.run(self.train_words(rng), Moment("full", draw_count(rng)))
        self.judge_training(ended, None, may_refuse=True)

    def rule_extend(self, rng: random.Random) -> None:
        more = 3 if self.steps < 12 else 0
        moment = Moment("kill", draw_count(rng)) if rng.random() < 0.4 else None
        ended, before = self.run(self.train_words(rng, more), moment)
        stored = self.settings().get("steps")
        if more and stored == self.steps + more:
            self.steps = stored
        if ended.status is not None:
            # a cosine is not extended, and neither is what has no checkpoint of the shared part
            self.judge_training(ended, before, may_refuse=True)

    def rule_meanwhile(self, rng: random.Random) -> None:
        """While it trains, somebody starts it again, reads it, or damages a file."""
        self.begin_anew(rng)
        child = Child(self.place, self.train_words(rng), Moment("hold", draw_count(rng)))
        what, recorded = rng.choice(["train", "damage", "read"]) if child.wait_until_held() else "", self.settings()
        self.log[-1] += f" {what}"
        if what == "train":
            self.judge_training(run(self.place, self.train_words(rng)), None, may_refuse=True)
        elif what == "read":
            self.read(rng.choice(["eval", "generate"]), settled=False)
        elif what == "damage":
            self.rule_damage(rng)
        ended = child.wait()  # the other may have been faster
        faster = what == "train" and ("in use" in ended.err or "not empty" in ended.err)
        self.judge_training(ended, None, faster, (recorded if child.after > 12 else {}) if what == "damage" else None)

    def run(self, line: str, moment: Moment | None = None) -> tuple[Ended, dict[str, str]]:
        before = snapshot(self.folder)
        ended = run(self.place, line, moment)
        if self.clean and any("/step-" in name for name in before) and not [*self.folder.glob("checkpoints/step-*")]:
            raise Violation(f"all checkpoints are lost: {ended}")
        return ended, before

    def settings(self) -> dict[str, Any]:
        try:
            values = yaml.safe_load(read(self.folder / "config.yaml"))
        except (Violation, ValueError, yaml.YAMLError):
            return {}
        return values if isinstance(values, dict) else {}

    def judge_training(self, ended: Ended, before: Any, may_refuse: bool = False, recorded: Any = None) -> None:
        """recorded: the settings that it has, if not those of the folder; none where its result is not compared."""
        self.log[-1] += f" -> {ended.status}: {(ended.err or ended.out).strip()[-200:]}"
        if ended.status == 2:
            self.judge_refusal(ended, before, may_refuse)
        elif ended.status == 130 and "interrupted" in ended.err:  # before its first step
            if ended.err.count("\n") != 1:
                raise Violation(f"interrupted in several lines: {ended.err}")
        elif ended.status in (0, 130):
            if recorded != {}:
                self.compare_run(ended, recorded)
        else:
            raise Violation(f"status {ended.status}: {ended.out[-300:]} {ended.err[-2000:]}")

    def judge_refusal(self, ended: Ended, before: dict[str, str] | None, may_refuse: bool = False) -> None:
        lines = [line for line in ended.err.splitlines() if not line.endswith("falling back to the previous one")]
        if len(lines) != 1 or not lines[0].startswith("geonorm ") or "Traceback" in ended.err:
            raise Violation(f"status 2 with {len(lines)} lines: {ended.err[-2000:]}")
        if before is not None and (changed := snapshot(self.folder).items() ^ before.items()):
            raise Violation(f"refused, and changed {sorted(changed)}: {ended.err}")
        if self.clean and not may_refuse:
            raise Violation(f"refused, and nothing was damaged: {ended.err}")

    def compare_run(self, ended: Ended, recorded: dict[str, Any] | None = None) -> None:
        """Compares what is in the folder with an undisturbed run."""
        recorded = recorded or self.settings()
        oracle = self.oracle.run(recorded)
        summary = summary_of(self.folder)
        steps = recorded["steps"] if ended.status == 0 else summary["steps"]
        if ended.status == 0:
            self.equal("summary", summary, summary_of(oracle))
            if "already finished" in ended.out:
                return
        self.equal("its content", result_of(self.folder, steps), result_of(oracle, steps, last=steps))

    def equal(self, what: str, value: Any, expected: Any) -> None:
        if value != expected:
            if isinstance(value, dict):
                keys = [key for key in value | expected if value.get(key) != expected.get(key)]
                value, expected = ({key: each.get(key) for key in keys} for each in (value, expected))
            raise Violation(f"status 0, and {what} is not the oracle's: {str(value)[:700]} != {str(expected)[:700]}")

    # Reading.

    def rule_read(self, rng: random.Random) -> None:
        self.read(rng.choice([*READERS, "export"]))

    def read(self, verb: str, settled: bool = True) -> None:
        self.log[-1] += f" {verb}"
        to = f"{verb}-{len(self.log)}"
        ended, before = self.run(READERS[verb].format("run", to=to))
        self.log[-1] += f" -> {ended.status}: {(ended.err or ended.out).strip()[-200:]}"
        found = [step_of(path) for path in (self.folder / "checkpoints").glob("step-*")]
        if ended.status == 2:
            ready = self.finished if verb == "export" else bool(found) or (verb == "report" and bool(self.settings()))
            self.judge_refusal(ended, before if settled else None, may_refuse=not ready or not settled)
            if (self.place / to).exists() and verb == "export":
                raise Violation(f"refused, and wrote {to}: {ended.err}")
            return
        if ended.status != 0 or "Traceback" in ended.err:
            raise Violation(f"status {ended.status}: {ended.err[-2000:]}")
        if settled and snapshot(self.folder) != before:
            raise Violation("a reader has changed the folder")
        if verb == "report":
            return
        answer = answer_of(self.place, verb, "run", to, ended)
        oracle = self.oracle.run(self.settings())
        steps = [step for step in found if step == max(found) or "falling back" in ended.err or not settled]
        if not any(answer == self.oracle.answer(oracle, step, verb) for step in steps):
            self.equal(f"{verb} at {steps}", answer, self.oracle.answer(oracle, steps[-1], verb))

    # Damage.

    def rule_damage(self, rng: random.Random) -> None:
        self.back_up()
        if any(self.folder.rglob("[!.]*")):
            how = damage_file(self.folder, self.oracle.place / "donor", self.place / f"moved-{len(self.log)}", rng)
            self.log[-1] += f" {how}"
            self.clean = self.clean and how.endswith("times")

    def back_up(self) -> None:
        if self.clean and self.folder.exists():
            shutil.rmtree(self.backup, ignore_errors=True)
            shutil.copytree(self.folder, self.backup)
            self.backup_steps = self.steps

    def rule_change(self, rng: random.Random) -> None:
        """Another value of a setting in config.yaml."""
        self.back_up()
        if settings := self.settings():
            self.log[-1] += f" {change_setting(settings, rng)}"
            self.clean = False
            (self.folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))

    def rule_tamper(self, rng: random.Random) -> None:
        """A run, whole or stopped: a bit of its newest files or a row changes, and all that reads them is asked."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.clean, self.steps = True, 6
        moment = Moment("stop", rng.randint(20, 42)) if len(self.log) % 3 else None
        self.judge_training(*self.run(self.train_words(rng), moment))
        self.back_up()
        path, self.clean = tamper(self.folder, "summary.json" if self.finished else "state.json", rng), False
        self.log[-1] += f", {path}"
        for verb in ("eval", "export", "report"):
            self.read(verb)
        other = path.endswith(".jsonl") and digest(self.folder / path) != digest(self.backup / path)
        page = self.place / f"report-{len(self.log)}" / "page.csv"
        if other and self.finished and "not belong together" not in page.read_text():
            raise Violation(f"the report does not say that {path} was changed")
        self.rule_train(rng)
        self.rule_extend(rng)
        self.rule_restore(rng)

    def rule_restore(self, _: random.Random) -> None:
        """Everything as it was before the damage."""
        if not self.clean and self.backup.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            shutil.copytree(self.backup, self.folder)
            self.clean, self.steps = True, self.backup_steps


RULES = dict(train=4, stop=3, kill=3, full=1, extend=2, read=4, damage=5, change=2, tamper=8, meanwhile=2)  # noqa: C408
"""The rules of a walk, and how often each is drawn."""
Steps = list[tuple[str, int]]


def draw_count(rng: random.Random) -> int:
    """Operations on files before something happens: a run of six steps has some 75, ten before its first step."""
    return rng.randint(1, rng.choice([10, 75, 75]))


def draw(rng: random.Random) -> tuple[str, Steps]:
    """A walk: schedule and scheme of its run, and its steps. What is damaged or changed is mostly used at once."""
    names = [rng.choice(["train", "stop", "kill", "kill"])]
    while len(names) < 10:
        names += rng.choices(list(RULES), list(RULES.values()))
        if names[-1] in ("damage", "change"):
            names += [rng.choice("train stop read read".split())] * (rng.random() < 0.8)
            names += ["restore"] * (rng.random() < 0.6)
    return f"{rng.choice(list(STARTS))} {rng.choice(SCHEMES)}", [(name, rng.randrange(10**6)) for name in names]


def parse(replay: str) -> tuple[str, Steps]:
    schedule, scheme, *words = replay.split()
    return f"{schedule} {scheme}", [(rule, int(seed)) for rule, seed in (word.split(":") for word in words)]


def take(place: Path, start: str, steps: Steps, oracle: Oracle, taken: Counter[str]) -> str | None:
    """Takes a walk, whose steps it counts; what it broke, and its log."""
    shutil.rmtree(place, ignore_errors=True)
    walk = Walk(place, *start.split(), oracle)
    try:
        for rule, seed in steps:
            walk.step(rule, seed)
            taken[rule] += 1
    except Violation as broken:
        return "\n  ".join([*walk.log, f"VIOLATION {broken}"])
    except Exception:
        return "\n  ".join([*walk.log, f"the folder cannot be read: {traceback.format_exc()}"])
    return None


def shorten(place: Path, start: str, steps: Steps, oracle: Oracle, problem: str) -> tuple[Steps, str]:
    """A walk without steps that it does not need to break the invariant, and what it broke."""
    for at in reversed(range(len(steps))):
        fewer = steps[:at] + steps[at + 1 :]
        if fewer and (still := take(place, start, fewer, oracle, Counter())):
            steps, problem = fewer, still
    return steps, problem


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--walks", type=int, default=10**9, help="at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", help="the words of a walk that failed")
    options = parser.parse_args()
    with home() as base:
        preload()
        oracle = Oracle(base / "oracle")
        begun, taken = time.monotonic(), Counter[str]()
        walks = (draw(random.Random(f"{options.seed} {number}")) for number in range(options.walks))
        for number, (start, steps) in enumerate([parse(options.replay)] if options.replay else walks, 1):
            if problem := take(base / "walk", start, steps, oracle, taken):
                steps, problem = shorten(base / "walk", start, steps, oracle, problem)
                walk = " ".join([start, *(f"{rule}:{seed}" for rule, seed in steps)])
                print(f'walk {number - 1} of seed {options.seed}: --replay "{walk}"\n  {problem}')
                return 1
            seconds, count = time.monotonic() - begun, sum(taken.values())
            print(f"{seconds:.0f} s: {number} walks, {count} steps: {dict(taken)}", flush=True)
            if seconds > options.seconds:
                break
    return 0


if __name__ == "__main__":
    sys.exit(main())
