"""Exit codes of verdicts, and reports: Markdown, JUnit XML, GitHub annotations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args
from xml.etree import ElementTree

from warpdrive_min.errors import one_line, printable, shortened

from ..core.errors import Code
from ..show import render
from ..show.columns import Column, Table
from ..show.labels import plural
from .evidence import Judgement

Kind = Literal["broken", "not comparable", "changed", "left out"]
"""Kind of problem.

A point or the gate failed, sides differ in a comparable field, only one side has a point, or a point was contended or
throttled."""


class Outcome(NamedTuple):
    """Exit code and JUnit element of a verdict or a problem."""

    code: Code
    junit: str = ""
    """Element of JUnit XML; empty: passed."""


OUTCOMES: Final[Mapping[str, Outcome]] = {
    "broken": Outcome(Code.BROKEN, "error"),
    "not comparable": Outcome(Code.NOT_COMPARABLE, "error"),
    "changed": Outcome(Code.NOTHING, "error"),
    **dict.fromkeys(("regression", "worse", "not reproduced"), Outcome(Code.REGRESSION, "failure")),
    **dict.fromkeys(
        ("inconclusive", "needs timing", "left out", "other hardware"), Outcome(Code.INCONCLUSIVE, "skipped")
    ),
    **dict.fromkeys(("ok", "better", "same", "unchanged", "reproduced"), Outcome(Code.OK)),
}
"""Verdicts and problems, most serious first."""
ORDER: Final = {verdict: place for place, verdict in enumerate(OUTCOMES)}
KIND_OF_CODE: Final[Mapping[int, Kind]] = {OUTCOMES[kind].code: kind for kind in get_args(Kind)}
"""Kind of problem of a `CompareError`, by its exit code."""

COMMENT_LINES: Final = 6
"""Findings in a comment, which has at most ten lines."""


def exit_code(verdicts: Iterable[str]) -> Code:
    """Return the exit code of the most serious verdict."""
    return OUTCOMES[min(map(str.lower, verdicts), key=ORDER.__getitem__)].code


@dataclass(kw_only=True, slots=True)
class Report:
    """Judgements and problems of a gate."""

    baseline: str
    threshold: float
    verdicts: Sequence[str] = ("ok", "inconclusive", "regression")
    """Verdicts counted in the first line."""
    columns: Sequence[Column[Judgement[str]]] = ()
    what: str = "point"
    rows: list[Judgement[str]] = field(default_factory=list)
    problems: list[tuple[Kind, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    n_missing: int = 0
    """Number of planned points that a stopped gate did not measure."""

    def add(self, kind: Kind, *texts: str) -> None:
        """Add problems of a kind."""
        added = [*self.problems, *((kind, text) for text in texts)]
        self.problems = sorted(added, key=lambda problem: ORDER[problem[0]])

    @property
    def code(self) -> Code:
        """Exit code; without judgements the set of points has changed."""
        verdicts = [row.verdict for row in self.rows] or ["changed"]
        return exit_code([*verdicts, *(kind for kind, _ in self.problems)])

    @property
    def title(self) -> str:
        """Exit code as text."""
        nothing = self.code is Code.NOTHING
        return "nothing measured, or the set of points changed" if nothing else self.code.name.lower().replace("_", " ")

    @property
    def worst_first(self) -> list[Judgement[str]]:
        """Judgements by severity of their verdict, then by growth."""
        return sorted(self.rows, key=lambda row: (ORDER[row.verdict], -(row.estimate.value if row.estimate else 0)))

    @property
    def counts(self) -> str:
        """Number of judgements of each verdict, as a sentence."""
        counts = [f"{sum(row.verdict == name for row in self.rows)} {name}" for name in self.verdicts]
        of = f"{len(self.rows)} of " if self.n_missing else ""
        return (
            f"{of}{plural(len(self.rows) + self.n_missing, self.what)} against `{self.baseline}` "
            f"at a threshold of {self.threshold:.2%}: "
            f"{', '.join(counts)}."
        )

    @property
    def findings(self) -> list[tuple[str, str]]:
        """Verdicts that are not ok, then problems: each with its text."""
        rows = [(row.verdict, f"{row.subject}: {row.why}") for row in self.worst_first if OUTCOMES[row.verdict].code]
        return [*rows, *self.problems]

    def comment(self, link: str = "") -> str:
        """Return at most ten lines of Markdown for a pull request, regressions first.

        Args:
            link: Address of the whole report.
        """
        findings = sorted(self.findings, key=lambda each: (OUTCOMES[each[0]].junit != "failure", ORDER[each[0]]))
        shown, more = findings[:COMMENT_LINES], len(findings) - COMMENT_LINES
        rest = ([f"{more} more"] if more > 0 else []) + ([f"[the whole report]({link})"] if link else [])
        lines = [f"* **{kind}** {render.escape_markdown(shortened(text))}" for kind, text in shown]
        parts = [f"**Gate: {self.title}.** {self.counts}", "\n".join(lines), "; ".join(rest)]
        return "\n\n".join(filter(None, parts)) + "\n"

    def markdown(self) -> str:
        """Return the report as Markdown."""
        lines = [
            f"## Gate: {self.title}",
            "",
            self.counts,
            "",
            *(f"* {kind}: {render.escape_markdown(text)}" for kind, text in self.problems),
            *(f"* {render.escape_markdown(note)}" for note in self.notes),
        ]
        if shown := [row for row in self.worst_first if row.verdict != "unchanged"]:
            lines += ["", render.markdown(Table(columns=self.columns, rows=shown))]
        return "\n".join(lines).rstrip() + "\n"

    def junit(self) -> str:
        """Return the report as JUnit XML.

        A regression is a failure, an inconclusive verdict is skipped.
        """
        suite = ElementTree.Element("testsuite", name="bench gate")
        cases = [(row.verdict, row.why, f"bench.{row.subject.partition('[')[0]}", row.subject) for row in self.rows]
        cases += [(kind, text, "bench.gate", f"{kind}: {text.partition(chr(10))[0]}") for kind, text in self.problems]
        for outcome, text, classname, name in cases:
            case = ElementTree.SubElement(suite, "testcase", classname=one_line(classname), name=one_line(name))
            if tag := OUTCOMES[outcome].junit:
                ElementTree.SubElement(case, tag, message=printable(text))
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
        suite.set("tests", str(len(suite)))
        ElementTree.indent(suite)
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"

    def annotations(self) -> list[str]:
        """Return GitHub's workflow commands: errors fail the gate, others are warnings."""
        return [_annotation(title, text) for title, text in self.findings]


def run_page() -> str:
    """Return the address of this run of GitHub Actions; empty elsewhere."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, run = (os.environ.get(name, "") for name in names)
    return f"{server}/{repository}/actions/runs/{run}" if server and repository and run else ""


def _annotation(title: str, text: str) -> str:
    """Return a workflow command.

    Source: GitHub's `@actions/core`, whose `command.ts` escapes these characters.
    """
    level = "warning" if OUTCOMES[title].junit == "skipped" else "error"
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{level} title=bench gate%3A {title}::{escaped}"
