"""Pages and tables of the claims. A line of text remembers which claims it tells."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from geonorm.lab.statistics.synthesis import GRADES
from geonorm.report.style import signed
from geonorm.report.tables import with_interval

from .claims import Claim, Evidence, Side, Values

CLAUSES = {
    "better": "ends with a lower loss",
    "worse": "ends with a higher loss",
    "not resolved": "is neither clearly better nor worse",
    "one run": "has one run",
}
"""A verdict as the end of a sentence. The others: is equal within a margin."""
BLOCK = re.compile(r"(<!-- claim ([\w.:-]+) -->)(.*?)(<!-- / -->)", re.DOTALL)
HEAD = ("verdict", "difference (95 %)", "p, Holm", "pairs")
MARK = "**°** marks a scheme without embedding norm; one without the mark has it (a norm right after the embedding)."
BUILT = "<!-- Written by `python -m evidence build` from evidence/claims.yaml: edit there. -->"
SEED = "**†** counts the seed that chose the rates."
POOLS = "A pool leaves out the seed that chose the rates."
NOTE = "A mark is a seed, a bar the 95 % interval of their mean, the upright line that mean."


class Line(NamedTuple):
    """A line of a page and the claims whose numbers or verdicts stand in it."""

    text: str
    claims: tuple[str, ...] = ()


class Book:
    """All that is written from the claims of a checkout."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.values: Mapping[str, Values] = {**evidence.results, **evidence.pools}
        self.words: Values = evidence.file
        self.tables_by_hand: Mapping[str, Callable[[str], Iterator[Line]]] = {
            "table": lambda _: self.readme_table(),
            "which": lambda _: self.advice(),
            "experiment": self.experiment,
            "scheme": self.scheme,
        }
        """What stands between marks in pages by hand, besides single claims."""

    # names

    def label(self, side: Side | None) -> str:
        scheme = side.scheme if side else ""
        return str(self.words["labels"].get(scheme, f"`{scheme}`"))

    def what(self, claim: Claim) -> str:
        """What is compared, in words."""
        extra = {"val_loss_average": ", averaged weights", "train": ", training loss"}.get(claim.measure, "")
        rate = f", both at {claim.lr:g}" if claim.lr else ""
        other = self.label(claim.second)
        if claim.second == Side("better"):
            other = f"{self.label(self.evidence.opponent(claim))} (the better)"
        return (claim.what or f"{self.label(claim.first)} − {other}") + rate + extra

    def where(self, claim: Claim) -> str:
        setting = self.evidence.place(claim)
        return f"[{setting.where}](../../experiments/{setting.experiment})"

    # numbers

    def size(self, name: str) -> float | None:
        """Tokens per parameter; None for images."""
        row, text = self.values[name], self.evidence.place(self.evidence.claims[name]).text
        return row["tokens"] / row["parameters"] if text and row["tokens"] else None

    def difference(self, name: str) -> str:
        row = self.values[name]
        return with_interval(row["mean"], row["low"], row["high"])

    def pairs(self, name: str) -> str:
        """How many, with a mark where the seed that chose the rates is among them."""
        row = self.values[name]
        return f"{row['n']}{'†' if row['tuning_seed_counts'] else ''}"

    def form(self, name: str, form: str = "") -> str:
        """A claim as a template asks: in full, or a part of it."""
        row = self.values[name]
        forms: dict[str, Callable[[], str]] = {
            "": lambda: f"{row['verdict']}, {self.difference(name)}",
            "word": lambda: row["verdict"],
            "clause": lambda: CLAUSES.get(row["verdict"], f"is {row['verdict']}"),
            "difference": lambda: self.difference(name),
            "mean": lambda: signed(row["mean"]),
            "gap": lambda: f"{abs(row['mean']):.3f} {'lower' if row['mean'] < 0 else 'higher'}",
            "n": lambda: str(row["n"]),
            "expected": lambda: f"{signed(row['expected_low'])} to {signed(row['expected_high'])}",
        }
        return forms[form]()

    def fill(self, text: str) -> Line:
        """A text with its {claim:form} filled in."""
        names: list[str] = []

        def value(match: re.Match[str]) -> str:
            name, _, form = match[1].partition(":")
            names.append(name)
            return self.form(name, form)

        return Line(re.sub(r"\{([\w.:-]+)\}", value, text), tuple(names))

    # tables

    def groups(self, names: Iterable[str], by: str) -> dict[str, list[str]]:
        """Claims that share what is compared, or where; ordered by tokens per parameter."""
        shared = self.what if by == "what" else self.where
        groups: dict[str, list[str]] = {}
        for name in sorted(names, key=lambda name: self.size(name) or 0.0):
            groups.setdefault(shared(self.evidence.claims[name]), []).append(name)
        return groups

    def tables(self, names: Iterable[str], by: str) -> Iterator[Line]:
        """A table for each group; those of one row are joined in the last, which says what and where."""
        groups = self.groups(names, by)
        single = [name for members in groups.values() if len(members) == 1 for name in members]
        groups = {title: members for title, members in groups.items() if len(members) > 1}
        for title, members in [*groups.items(), *([("Single comparisons", single)] if single else [])]:
            both, last = members is single, () if members is single else ("tokens per parameter",)
            columns = ("difference of", "where") if both else ("where",) if by == "what" else ("difference of",)
            yield from (Line(""), Line(f"## {title}"), Line(""), *table_head((*columns, *HEAD, *last)))
            for name in members:
                row, claim, size = self.values[name], self.evidence.claims[name], self.size(name)
                texts = {"difference of": self.what(claim), "where": self.where(claim) + tokens(size) * both}
                cells = [texts[column] for column in columns]
                cells[0] += f" (claimed: {claim.claimed})" if claim.claimed else ""
                cells += [row["verdict"], self.difference(name), p_value(row["p_holm"]), self.pairs(name)]
                yield table_row(cells if both else [*cells, short(size)], name)

    def readme_table(self) -> Iterator[Line]:
        yield from table_head(("setting", "embedding norm in", "verdict", "GeoNorm − Pre-Norm", "p, Holm", "from"))
        for name, (setting, norm) in self.words["readme"].items():
            row = self.values[name]
            of = "settings" if name in self.evidence.pools else "seeds" if row["n"] > 1 else "seed"
            cells = [setting, norm, row["verdict"], self.difference(name), p_value(row.get("p_holm"))]
            yield table_row([*cells, f"{row['n']} {of}{'†' if row.get('tuning_seed_counts') else ''}"], name)

    def pooled_table(self, names: Iterable[str]) -> Iterator[Line]:
        yield from table_head(("pooled", "verdict", "difference (95 %)", "one more setting", "settings", "certainty"))
        for name in names:
            row, words = self.values[name], self.words["pools"][name]
            cells = [words["what"], row["verdict"], self.difference(name), self.form(name, "expected"), str(row["n"])]
            yield table_row([*cells, self.certainty({"pools": [name]}).partition(" (")[0]], name)

    def advice(self) -> Iterator[Line]:
        """Which scheme when."""
        yield from table_head(("you want", "try", "evidence"))
        for words in self.words["which"]:
            evidence = self.fill(words["evidence"])
            yield table_row([words["want"], words["try"], evidence.text], *words["claims"], *evidence.claims)

    def experiment(self, folder: str) -> Iterator[Line]:
        """What an experiment decides: its predictions, then its claims."""
        predicted = [row for row in self.outcomes() if f"/{folder})" in row.text]
        if predicted:
            yield from table_head(("predicted", "outcome", "measured"))
            rows = [Line("|" + row.text.partition("|")[2].partition("|")[2], row.claims) for row in predicted]
            yield from (*rows, Line(""))
        claims = [claim for claim in self.evidence.claims.values() if self.evidence.place(claim).experiment == folder]
        places = [self.evidence.place(claim).where + tokens(self.size(claim.name)) for claim in claims]
        several = len({*places}) > 1
        yield from table_head(("difference of", *["where"] * several, "verdict", "difference (95 %)", "pairs"))
        for claim, place in zip(claims, places, strict=True):
            cells = [self.what(claim), *[place] * several, self.values[claim.name]["verdict"]]
            yield table_row([*cells, self.difference(claim.name), self.pairs(claim.name)], claim.name)

    def scheme(self, scheme: str) -> Iterator[Line]:
        """Where a scheme of this name was compared, each at its best rate: pools, then the better Pre-Norm."""
        every = self.evidence.claims.values()
        claims = [claim for claim in every if claim.first and claim.first.scheme.partition("(")[0] == scheme]
        pools = dict.fromkeys(claim.pool for claim in claims if claim.pool)
        ranked = {claim.name: claim for claim in claims if claim.ranks}
        if not pools and not ranked:
            return
        yield Line("**Here**, in [very small models](results/other-schemes.md), at best rates (°: no embedding norm):")
        yield from (Line(""), *table_head(("difference of", "where", "verdict", "difference (95 %)")))
        for name in pools:
            what, where = self.words["pools"][name]["what"], f"{self.form(name, 'n')} settings"
            yield table_row([what, where, self.form(name, "word"), self.difference(name)], name)
        for name, claim in ranked.items():
            where = self.evidence.place(claim).where + tokens(self.size(name))
            yield table_row([self.what(claim), where, self.form(name, "word"), self.difference(name)], name)

    # pages

    def question(self, key: str, words: Values) -> Iterator[Line]:
        members = self.members(key)
        yield from (Line(f"# {words['title']}"), Line(""), Line(BUILT), Line(""))
        yield from (self.fill(words["answer"][0]), Line(""))
        of = " of the first pool" if words.get("pools") else ""
        yield from (Line(f"**Certainty{of}: {self.certainty(words)}**"), Line(""))
        for text in words["answer"][1:]:
            yield from (self.fill(text), Line(""))
        yield from (Line(self.scale(members), tuple(members)), Line(""))
        yield from (
            Line(f"![Differences with 95 % intervals, as in the tables](figures/{key}.svg)", tuple(members)),
            Line(""),
            Line(NOTE),
        )
        if pools := words.get("pools"):
            yield from (Line(""), Line(POOLS), Line(""))
            yield from self.pooled_table(pools)
        yield from self.tables(members, words.get("by", "where"))
        counted = any(self.values[name]["tuning_seed_counts"] for name in members)
        yield from (Line(""), Line(f"{MARK} {SEED}" if counted else MARK))
        if published := words.get("published"):
            yield from (Line(""), Line("## Published"), Line(""), Line(published["text"]), Line(""))
            yield from table_head(("scheme", "parameters", "published", "ours"))
            yield from (self.fill(f"| {' | '.join(row)} |") for row in published["rows"])
        yield from (Line(""), Line("## What would change this"), Line(""))
        yield from (self.fill(f"- {text}") for text in words["change"])
        yield from (Line(""), Line("[All questions](../results.md), and how to read the tables."))

    def scale(self, members: Sequence[str]) -> str:
        """Sizes of the models of a page, vocabulary and context, and the losses of the second schemes."""
        claims = [self.evidence.claims[name] for name in members]
        texts = list(dict.fromkeys(place.text for place in map(self.evidence.place, claims) if place.text))
        sizes = [self.values[name]["parameters"] for name in members if self.values[name]["parameters"]]
        counted = [claim for claim in claims if claim.measure == "val_loss" and self.evidence.place(claim).text]
        losses = [self.evidence.arms(claim)[1].mean for claim in counted if not claim.change]
        span = " to ".join(dict.fromkeys(f"{short(size / 1e6)}M" for size in (min(sizes), max(sizes))))
        return (
            f"Scale: models of {span} parameters; {'; '.join(texts)}. B of A − B ends at "
            f"{min(losses):.2f} to {max(losses):.2f} nats per token."
        )

    def certainty(self, words: Values) -> str:
        """That of a question's first pool; without one, a step for each doubt that claims.yaml names."""
        pools = words.get("pools", ())
        doubts = self.values[pools[0]]["doubts"] if pools else words["doubts"]
        return f"{GRADES[min(len(doubts), len(GRADES) - 1)]} ({'; '.join(doubts)})"

    def index(self) -> Iterator[Line]:
        yield from (Line("# Results"), Line(""), Line(BUILT), Line(""))
        for key, words in self.words["questions"].items():
            answer, grade = self.fill(words["answer"][0]), self.certainty(words).partition(" (")[0]
            text = f"- **[{words['title']}](results/{key}.md)** {answer.text} *(certainty: {grade})*"
            yield Line(text, answer.claims)
        rows = list(self.outcomes())
        missed, open_ = (sum(f"| {word} |" in row.text for row in rows) for word in ("missed", "open"))
        names = tuple(name for row in rows for name in row.claims)
        text = f"{missed} of {len(rows) - open_} predicted differences were missed. {self.words['predictions_more']}"
        yield Line(f"- **[What was predicted wrongly?](results/predictions.md)** {text}", names)
        yield from (Line(""), *map(self.fill, self.words["leaderboard"]["text"].splitlines()))
        yield from (Line(""), *self.leaderboard(), Line(""), Line(MARK))
        yield from (Line(""), *map(self.fill, self.words["reading"].splitlines()))

    def leaderboard(self) -> Iterator[Line]:
        """Differences to the better Pre-Norm, a scheme a row and a setting a column."""
        columns: Mapping[str, str] = self.words["leaderboard"]["settings"]
        cells: dict[str, dict[str, str]] = {}
        for claim in self.evidence.claims.values():
            if claim.ranks and claim.setting in columns:
                cells.setdefault(self.label(claim.first), {})[claim.setting] = claim.name
        better: dict[str, str] = {}
        for row in cells.values():
            better |= {key: self.label(self.evidence.opponent(self.evidence.claims[row[key]])) for key in row}
        yield from table_head(("scheme", *(f"{head}; against {better[key]}" for key, head in columns.items())))

        def resolved(row: Mapping[str, str]) -> int:
            return sum(self.values[name]["n"] > 1 for name in row.values())

        for scheme, row in sorted(cells.items(), key=lambda item: -resolved(item[1])):
            if not resolved(row):
                continue
            parts = [f"{self.form(row[s], 'mean')} {self.form(row[s], 'word')}" if s in row else "–" for s in columns]
            yield table_row([scheme, *parts], *row.values())

    def outcomes(self) -> Iterator[Line]:
        """Each registered prediction: a verdict, or a range of the mean."""
        for words in self.words["predictions"]:
            name, expected = words["claim"], words["expect"]
            row = self.values[name]
            named = isinstance(expected, str)
            holds = row["verdict"] == expected if named else expected[0] <= row["mean"] <= expected[1]
            outcome = "open" if row["n"] == 1 else "kept" if holds else "missed"
            link = f"[{words['experiment'][:3]}](../../experiments/{words['experiment']})"
            predicted = self.fill(words["text"])
            yield table_row([link, predicted.text, outcome, self.form(name)], name, *predicted.claims)

    def predictions(self) -> Iterator[Line]:
        yield from (Line("# Predictions, kept and missed"), Line(""), Line(BUILT), Line(""))
        yield from map(self.fill, self.words["predictions_text"].splitlines())
        rows = list(self.outcomes())
        groups = {word: [row for row in rows if f"| {word} |" in row.text] for word in ("missed", "kept", "open")}
        for outcome, chosen in ((word, rows) for word, rows in groups.items() if rows):
            yield from (Line(""), Line(f"## {outcome.capitalize()}: {len(chosen)}"), Line(""))
            yield from (*table_head(("experiment", "predicted", "outcome", "measured")), *chosen)
        yield from (Line(""), Line("[All questions](../results.md)"))

    def negative(self) -> Iterator[Line]:
        """Every comparison of some questions whose first scheme ended higher."""
        yield from (Line("# What did not help"), Line(""), Line(BUILT), Line(""))
        yield Line("In each pair the first ended higher. What is not resolved stands on the linked pages.")
        for key in self.words["negative"]:
            yield from (Line(""), Line(f"## [{self.words['questions'][key]['title']}]({key}.md)"), Line(""))
            yield from table_head(("difference of", "where", "difference (95 %)"))
            for name in (name for name in self.members(key) if self.values[name]["verdict"] == "worse"):
                claim = self.evidence.claims[name]
                where = self.evidence.place(claim).where + tokens(self.size(name))
                yield table_row([self.what(claim), where, self.difference(name)], name)
        yield from (Line(""), Line(MARK), Line(""), Line("[All questions](../results.md)"))

    def pages(self) -> dict[str, list[Line]]:
        """By path in the checkout, every page that is written whole."""
        pages = {f"docs/results/{key}.md": list(self.question(key, w)) for key, w in self.words["questions"].items()}
        pages["docs/results.md"] = list(self.index())
        pages["docs/results/predictions.md"] = list(self.predictions())
        pages["docs/results/negative.md"] = list(self.negative())
        return pages

    def blocks(self, text: str) -> list[Line]:
        """A text by hand with what stands between its marks filled in."""
        names: dict[int, tuple[str, ...]] = {}
        place, out = 0, ""
        for match in BLOCK.finditer(text):
            out += text[place : match.end(1)]
            start = out.count("\n")
            name, _, form = match[2].partition(":")
            if name in self.tables_by_hand:
                lines = list(self.tables_by_hand[name](form))
                names |= {start + 1 + n: line.claims for n, line in enumerate(lines)}
                out += "\n" + "\n".join(line.text for line in lines) + "\n"
            else:
                names[start] = (*names.get(start, ()), name)
                out += self.form(name, form)
            out, place = out + match[4], match.end()
        out += text[place:]
        return [Line(line, names.get(n, ())) for n, line in enumerate(out.split("\n"))]

    def members(self, key: str) -> list[str]:
        return [claim.name for claim in self.evidence.claims.values() if key in claim.question.split()]


def plain_text(text: str) -> str:
    """Without links and marks of code."""
    return re.sub(r"\[(.*)\]\(.*\)", r"\1", text).replace("`", "")


def short(size: float | None) -> str:
    """Tokens per parameter, two figures."""
    return "–" if size is None else f"{size:.0f}" if size >= 10 else f"{size:.2g}"


def tokens(size: float | None) -> str:
    """The end of a label."""
    return f", {short(size)} tokens per parameter" if size else ""


def p_value(p: float | None) -> str:
    return "–" if p is None else f"{p:.2g}"


def table_head(titles: Sequence[str]) -> tuple[Line, Line]:
    return table_row(titles), Line("|" + " --- |" * len(titles))


def table_row(cells: Sequence[str], *claims: str) -> Line:
    return Line(f"| {' | '.join(cells)} |", claims)
