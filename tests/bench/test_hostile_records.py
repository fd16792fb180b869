"""Records of strangers cannot choose code or files, nor inject markup."""

from __future__ import annotations

import base64
import json
import sys
import xml.dom.minidom
from hashlib import sha256
from pathlib import Path

import pytest

from bench.core.errors import CompareError
from bench.core.record import Context, append
from bench.judge import reproduce
from bench.paper import write
from bench.report import html
from bench.show import render
from bench.show.columns import Column, Table
from bench.workloads.outside import job_of, names_of
from tests.bench.builders import OUTPUTS, bench, in_this_process, record
from tests.support import Page
from warpdrive_min.terminal import Console

EVIL = "\x1b]0;owned\x07 \n\\input{/etc/passwd} $\\frac$ <script>alert(1)</script> | ](http://a) {{x}} \ud800"
ROOT = Path(__file__).parents[2]
POINT = {"backend": "cpu", "n_envs": 100, "n_agents": 1, "exact": False}


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """Return a function that writes a record of a stranger's environment.

    The environment's module leaves a file if it is imported.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    Path("stranger_coin.py").write_text("import pathlib\npathlib.Path('imported').touch()\n")

    def write_record(env: str, **changes) -> Path:
        append(Path("r.jsonl"), record(point={"env": env, **POINT}, **changes))
        return Path("r.jsonl")

    yield write_record
    sys.modules.pop("stranger_coin", None)


@pytest.mark.parametrize(
    "env",
    [
        "stranger_coin",
        "stranger_coin.py",
        "./stranger_coin.py",
        "stranger_coin:Coin",
        'stranger_coin:Coin{"a": 1}',
        "{tmp_path}/stranger_coin.py",
        ".",
    ],
)
@pytest.mark.parametrize("command", ["reproduce", "gate"])
def test_a_record_does_not_choose_what_is_imported(command, env, stranger, tmp_path, monkeypatch):
    """Records cannot make a command import a module.

    Neither a path, a class nor a bare name is imported; the message names the option.
    """
    monkeypatch.setattr(reproduce, "run_point", lambda job, context: next(in_this_process([job], context)))
    monkeypatch.setattr("bench.process.local.run_points", in_this_process)
    file = stranger(env.replace("{tmp_path}", str(tmp_path)), machine=dict(Context.here("default").machine))
    words = ["run", "--records", file] if command == "reproduce" else ["--baseline", file, "--out", tmp_path / "out"]
    shown = bench(command, *words, exits=5)
    assert ("name it with --env " in shown) == (env != "stranger_coin")
    assert not Path("imported").exists()


@pytest.mark.parametrize(
    ("named", "env"),
    [
        ("tests.environments.counter:Counter", 'tests.environments.counter:Counter{"a": 1}'),
        ("tests/environments/recall.py", "tests.environments.recall:Recall"),
        ("tests/environments/recall.py", str(ROOT / "tests/environments/recall.py")),
    ],
)
def test_what_the_user_names_is_imported(named, env, monkeypatch):
    """Only an environment that the user names is imported.

    Any spelling and any config work.
    """
    monkeypatch.chdir(ROOT)
    given = record(point={"env": env, **POINT})
    assert job_of(given, names_of([named])).point is given.point
    with pytest.raises(CompareError, match="name it with --env"):
        job_of(given, names_of(["tests.environments.clock:Clock"]))


COMMANDS = [
    "table {file}",
    *OUTPUTS,
    "gate --baseline {file} --records {file} --junit {out}/r.xml --summary {out}/s --comment {out}/c --annotations",
    "reproduce none --records {file} --out {out}/r.jsonl",
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.partition(" {")[0])
@pytest.mark.parametrize(
    "changes",
    [
        {"case": "../../../esc", "git": {"sha": "--output=esc", "dirty": False}},
        {"case": "/esc", "git": {"sha": "../../../esc", "dirty": False}},
        {"case": EVIL, "status": "failed", "reason": EVIL},
        {"point": {"env": EVIL, **POINT, EVIL: EVIL}},
        {
            "run_id": EVIL,
            "machine": {"gpu": f"../../{EVIL}", "cpu": EVIL, "cores": EVIL, "python": EVIL},
            "notes": {"note": EVIL, EVIL: EVIL},
            "command": EVIL,
        },
        {"case": EVIL},
        {"scope": {EVIL: EVIL}},
    ],
    ids=["case up", "case root", "case", "point", "rest", "case ok", "refused"],
)
def test_texts_of_records_are_escaped(command, changes, tmp_path, monkeypatch):
    """Texts of records are escaped in all outputs.

    No control characters, broken XML, or files outside the given folder.
    """
    (folder := tmp_path / "a/b/c").mkdir(parents=True)
    monkeypatch.chdir(folder)
    lines = [
        record(point={"env": "cartpole", **POINT, "n_envs": n}).model_dump(mode="json", by_alias=True)
        for n in (100, 200)
    ]
    Path("r.jsonl").write_text("".join(json.dumps(each | changes) + "\n" for each in lines))
    shown = bench(*command.format(file="r.jsonl", out="out").split(), exits=(0, 1, 2, 3, 5))
    assert {each for each in shown if not each.isprintable()} <= {"\n"}
    assert "Traceback" not in shown
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(folder / "out")]
    assert outside == [folder / "r.jsonl"]
    assert not list(Path("/").glob("esc*"))
    for path in [*folder.rglob("*.svg"), *folder.rglob("*.xml")]:
        xml.dom.minidom.parseString(path.read_bytes())
    for path in folder.rglob("*.tex"):
        assert "\\input{/" not in path.read_text()
        assert "\x1b" not in path.read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["report", "{r}", "--out", "{r}"],
        ["export", "csv", "{r}", "--out", "{r}"],
        ["export", "rliable", ".", "--out", "{r}"],
        ["gate", "--baseline", "{r}", "--records", "{r}", "--comment", "{r}"],
        ["gate", "--baseline", "{r}", "--junit", "{r}"],
    ],
)
def test_no_output_replaces_the_records(words, tmp_path, monkeypatch):
    """An output that is a file of records is refused, by whatever path."""
    monkeypatch.chdir(tmp_path)
    append(Path("r.jsonl"), record())
    before = Path("r.jsonl").read_bytes()
    Path("link").symlink_to("r.jsonl")
    *given, out = words
    shown = bench(*(word.format(r="r.jsonl") for word in given), out.format(r="link"), exits=(1, 5))
    assert "must not be a file that records are read from (got link); name another one" in shown
    assert Path("r.jsonl").read_bytes() == before


def test_two_cases_of_one_slug_have_two_files(tmp_path):
    """Two cases with one slug have two files."""
    file = tmp_path / "r.jsonl"
    for case in ("a/b", "a_b"):
        append(file, record(case=case))
    written = write([file], tmp_path / "out")
    assert len(written) == len({*written})
    assert {"a-b.tex", "a-b-again.tex"} <= {path.name for path in written}


def test_the_report_runs_its_own_script_alone():
    """The report's policy permits only its own script and style."""
    failed = record(status="failed", reason=EVIL)
    page = Page(html([record(run_id=EVIL, command=EVIL, notes={"note": EVIL}), failed]))
    (policy,) = (each["content"] for _, each in page.elements if "http-equiv" in each)
    assert "unsafe" not in policy
    assert not [name for _, each in page.elements for name in each if name == "style" or name.startswith("on")]
    own = page.scripts["text/javascript"]
    for tag, text in (("script", own), ("style", page.scripts["text/css"])):
        assert f"{tag}-src 'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'" in policy
    assert ".style.setProperty(" in own
    assert "{ style:" not in own


def test_tables_are_escaped_in_every_format():
    """A cell stays a cell, with its text unchanged."""
    table = Table(columns=[Column("a|b", str), Column("c", lambda row: "z")], rows=["x | <b> [y](z) ![i](j) \\\n| q |"])
    shown = "x \\| \\<b> [y]\\(z) ![i]\\(j) \\\\\\\\n\\| q \\|"
    assert render.markdown(table).splitlines()[2] == f"| {shown} | z |"
    assert len(render.markdown(table).splitlines()) == 3
    hat = r"\textasciicircum{}"
    assert render.escape("[1] *\n\\x^^41") == rf"{{[}}1] {{*}}\textbackslash{{}}n\textbackslash{{}}x{hat}{hat}41"
    console = Console(width=200)
    with console.capture() as got:
        console.print(render.terminal(Table(columns=[Column("[b]", str)], rows=["[red]x\x1b[2J"])))
    assert "[b]" in got.get()
    assert r"[red]x\x1b[2J" in got.get()
