"""Machine code without a GPU: parsing, loops, occupancy."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import uuid

import pytest

import envs
from bench.core.errors import Code, CompareError
from bench.core.machine import ROOT
from bench.core.point import Check, Measurement, Metric
from bench.core.record import Context, Record, StartTime, append, read_all
from bench.judge.gate import Choice, fill, report_on
from bench.judge.outcomes import Report
from bench.process.pace import Pace
from bench.static import cubin, probe, records, sass, sides, verdict
from bench.static.capability import CAPABILITIES, blocks_at_once, warps_at_once, wave_quantization
from bench.static.programs import BACKENDS, chosen
from bench.static.records import MACHINE_CODE, records_of
from bench.static.sass import Instruction, access_hash, pipe_of, shape_hash, width_of
from bench.static.sides import Work, print_size
from tests.bench.builders import bench
from warpdrive_min.backends import Availability, cuda_c, cuda_source
from warpdrive_min.envs import ENVS
from warpdrive_min.function_manager import KERNELS
from warpdrive_min.stopping import Stopped

CONTEXT = Context("a run", "default", {}, {}, "")


def code(*lines: str) -> list[Instruction]:
    """Return instructions with their loops; ``@`` marks predicated ones."""
    split = [line.removeprefix("@").partition(" ") for line in lines]
    plain = [
        Instruction(opcode, operands, line.startswith("@"))
        for line, (opcode, _, operands) in zip(lines, split, strict=True)
    ]
    return sass._locate(plain)


LOOPS = (
    "S2R R0,SR_TID.X",  # 0x00
    "MOV R1,RZ",  # 0x10
    "LDG.E.64 R2,desc[UR4][R4.64+0x8]",  # 0x20: the outer loop begins
    "FADD R3,R3,1",  # 0x30: the inner one
    "@BRA 0x30",  # 0x40
    "@BRA 0x80",  # 0x50: leaves the outer one
    "IADD3 R1,R1,0x1,RZ",  # 0x60
    "BRA 0x20",  # 0x70
    "STG.E desc[UR4][R4.64],R3",  # 0x80
    "EXIT",  # 0x90
    "BRA 0xa0",  # 0xa0: follows every last exit
    "NOP",
    "NOP",
)


def test_loops_are_counted_and_padding_is_not():
    """Instructions have a loop depth; padding is dropped.

    A loop is an edge back to a block that dominates the edge's source.
    """
    found = code(*LOOPS)
    assert [each.depth for each in found] == [0, 0, 1, 2, 2, 1, 1, 1, 0, 0]


def test_branches_halve_the_share_of_passes():
    """A branch or predicate halves the share, a loop does not."""
    nested = code(
        "@BRA 0x60",
        "FADD R1,R1,R2",
        "@BRA 0x50",
        "STG.E desc[UR4][R4.64],R1",
        "MOV R1,RZ",
        "NOP",
        "@FMUL R1,R1,R1",
        "EXIT",
    )
    assert [each.share for each in nested] == [0.5, 0.5, 0.25, 0.25, 0.25, 0.5, 0.5, 1.0]
    assert [each.share for each in code(*LOOPS)] == [1, 1, 1, 1, 0.5, 0.5, 1, 1, 1, 1]


def test_a_block_that_was_put_out_of_line_is_no_loop():
    """A jump back to a block that does not dominate is no loop."""
    found = code("@BRA 0x30", "FADD R1,R1,R2", "EXIT", "FMUL R1,R1,R1", "BRA 0x10")
    assert [each.depth for each in found] == [0] * 5


@pytest.mark.parametrize(
    ("opcode", "pipe"),
    [
        *(("FFMA", "fp32"), ("FADD32I", "fp32"), ("DFMA", "fp64"), ("HFMA2.MMA", "half"), ("MUFU.RCP", "sfu")),
        *(("IMAD.WIDE.U32", "int"), ("LOP3.LUT", "int"), ("IMAD.MOV.U32", "move"), ("S2R", "move"), ("I2F", "sfu")),
        *(("UIADD3", "uniform"), ("LDG.E.128", "global"), ("ATOMS.ADD", "shared"), ("STL", "local")),
        *(("ULDC.64", "constant"), ("SHFL.DOWN", "warp"), ("BAR.SYNC", "barrier"), ("BSSY", "control")),
        *(("NOP", "none"), ("QUUX", "other")),
    ],
)  # fmt: skip
def test_each_opcode_takes_one_pipe(opcode, pipe):
    """Each opcode maps to a pipe, whatever its modifiers."""
    assert pipe_of(Instruction(opcode, "", False)) == pipe


def test_width_of_a_memory_instruction():
    """A memory instruction's modifier gives its bytes.

    Without one it is a word.
    """
    words = {"LDG.E": 4, "LDG.E.64": 8, "STS.128": 16, "LDS.U8": 1, "LDG.E.U16.CONSTANT": 2}
    assert {opcode: width_of(Instruction(opcode, "", False)) for opcode in words} == words


def test_shapes_ignore_order_and_registers_but_no_number():
    """Code hashes ignore registers and order, but not strides."""
    one = code("IMAD R1,R2,0x80,R3", "LDG.E R4,desc[UR4][R6.64+0x10]", "FADD R1,R1,c[0x0][0x210]")
    two = code("FADD R9,R9,c[0x0][0x218]", "IMAD R7,R8,0x80,R9", "LDG.E R5,desc[UR8][R2.64+0x10]")
    far = code("IMAD R1,R2,0x84,R3", "LDG.E R4,desc[UR4][R6.64+0x10]", "FADD R1,R1,c[0x0][0x210]")
    assert shape_hash(one) == shape_hash(two) != shape_hash(far)
    assert access_hash(one) == access_hash(two) != access_hash(far)
    assert access_hash(one) != access_hash(code("LDG.E R4,desc[UR4][R6.64+0x14]"))


@pytest.mark.parametrize(
    "other", ["LEA R1,R2,R3,0x7", "SHF.L.U32 R1,R2,0x7,RZ", "IMAD.SHL.U32 R1,R2,0x80,RZ", "IMAD.WIDE R2,R5,0x80,R2"]
)
def test_stride_may_be_a_product_or_a_shift_any_number_of_times(other):
    """Access hashes ignore how the compiler multiplies.

    Sums and copies do not count as multiplications.
    """
    load = "LDG.E R4,desc[UR4][R6.64+0x10]"
    none = ("IMAD.MOV.U32 R1,RZ,RZ,0x5", "IMAD.IADD R1,R2,0x1,R3", "IADD3 R1,R2,0x40,RZ")
    assert access_hash(code("IMAD R1,R2,0x80,R3", load)) == access_hash(code(other, other, load, *none))
    assert access_hash(code(other, load)) != access_hash(code(load))


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "warps", "limit"),
    [
        ("sm_90", 128, 32, 0, 64, "warps"),  # 65,536 / (32 * 32) = 64 warps by registers too
        ("sm_90", 128, 33, 0, 48, "registers"),  # 33 * 32 rounds up to 1,280: 12 warps in each quarter
        ("sm_90", 256, 255, 0, 8, "registers"),  # 8,192 for a warp: 2 warps in each quarter
        ("sm_90", 128, 32, 99_328, 8, "shared memory"),  # 97 KiB and 1 KiB of the system's, twice in 228
        ("sm_90", 32, 16, 0, 32, "blocks"),
        ("sm_120", 128, 32, 0, 48, "warps"),
        ("sm_80", 1024, 64, 0, 32, "registers"),
    ],
)
def test_occupancy(arch, threads, registers, shared, warps, limit):
    """A multiprocessor's scarcest resource limits its blocks."""
    found = warps_at_once(CAPABILITIES[arch], threads=threads, registers=registers, shared_bytes=shared)
    assert found == (warps, limit)


@pytest.mark.parametrize(
    ("blocks", "waves"),
    [(100, 1), (396, 1), (397, 2 * 396 / 397), (500, 2 * 396 / 500), (792, 1), (793, 3 * 396 / 793)],
)
def test_wave_quantization(blocks, waves):
    """A partial last wave costs a full one.

    132 multiprocessors of twelve warps run 396 four-warp blocks at once.
    """
    at_once = blocks_at_once(CAPABILITIES["sm_90"], threads=128, warps=12)
    assert wave_quantization(blocks, at_once) == pytest.approx(waves)


def test_every_environment_is_looked_at_on_both_backends():
    """By default each environment has a program per backend."""
    programs = chosen([], [], None, None, {})
    assert {(each["name"], each["backend"]) for each in programs} >= {(n, b) for n in ENVS for b in BACKENDS}
    (one,) = chosen(["rice"], ["numba"], 7, 5, {})
    assert (one["n_envs"], one["n_agents"], one["config"]) == (7, 5, {"num_regions": 5})


def test_a_file_that_is_no_cubin_is_refused(tmp_path):
    """A file that is no cubin raises an error."""
    path = tmp_path / "a.cubin"
    path.write_bytes(b"#!/bin/sh")
    with pytest.raises(cubin.CubinError, match="must be an ELF-64 file"):
        cubin.kernels(path)


def test_without_a_disassembler_the_error_names_the_package(monkeypatch):
    """Without a disassembler the error names a package."""
    monkeypatch.setattr(sass.sys, "path", [])
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CompareError, match=r"needs nvdisasm.*pip install -e .*\[static\]"):
        sass.nvdisasm()


def test_slow_paths_belong_to_their_section(monkeypatch, tmp_path):
    """Slow paths belong to their kernel's section.

    Older versions of nvdisasm list them as functions.
    """
    listed = [("step", 0, ["FADD", "CALL"]), ("$__internal_0_$slow", 32, ["FMUL", "RET"]), ("reset", 0, ["EXIT"])]
    functions = [
        {"function-name": name, "start": start, "sass-instructions": [{"opcode": each} for each in opcodes]}
        for name, start, opcodes in listed
    ]
    done = subprocess.CompletedProcess([], 0, json.dumps([{}, functions]), "")
    monkeypatch.setattr(sass, "run", lambda *_: done)
    read = sass.disassemble(tmp_path / "kernels.cubin")
    assert {name: found.n_bytes for name, found in read.items()} == {"step": 64, "reset": 16}


def test_a_process_that_dies_fails_its_program_alone(monkeypatch, tmp_path):
    """A killed compiler fails only its own program."""
    probe = tmp_path / "probe.py"
    probe.write_text(
        "import json, sys\n"
        "from multiprocessing.connection import Connection\n"
        "connection = Connection(int(sys.argv[-1]))\n"
        "while request := json.loads(connection.recv_bytes()):\n"
        "    if request['arguments']['program']['n_envs'] == 1: sys.exit(9)\n"
        '    connection.send_bytes(b\'{"skipped": "no compiler"}\')\n'
    )
    monkeypatch.setattr(records, "PROBE", probe)
    programs = [each for n in (1, 2) for each in chosen(["cartpole"], ["pycuda"], n, None, {})]
    (dead,), (skipped,) = records_of(programs, ["sm_90"], CONTEXT, n_processes=1)
    assert (dead.status, dead.reason) == (
        "failed",
        "the process that compiles: died at answer with exit code 9; see the error output",
    )
    assert (skipped.status, skipped.reason) == ("skipped", "no compiler")


# ------------------------------------------------------------------ the gate


def kernel(name: str = "step", notes: dict[str, object] | None = None, **metrics: float) -> Record:
    """Return a kernel's record, with defaults for missing fields."""
    usual = dict.fromkeys((metric for names in verdict.COSTS.values() for metric in names), 100.0)
    told = {
        "code": "c",
        "shape": "s",
        "access": "a",
        "blocks": 8,
        "threads": 128,
        "launches": 1,
        "compiler": "nvrtc 13",
    }
    check = Check(passed=True, max_error=0.0)
    seen = Measurement(
        metrics={
            each: Metric.exact(value, "", "higher" if each == "occupancy" else "lower")
            for each, value in {"registers": 32.0, **usual, **metrics}.items()
        },
        before=check,
        after=check,
        notes={**told, **(notes or {})},
    )
    point = {"program": "cartpole", "part": name, "kernel": name, "backend": "pycuda", "arch": "sm_90"}
    return Record.of(MACHINE_CODE, point, CONTEXT, started=StartTime(), seen=seen)


OTHER: dict[str, object] = {"code": "d", "shape": "t"}
"""Notes of machine code with other instructions."""


@pytest.mark.parametrize(
    ("now", "outcome", "code", "says"),
    [
        (kernel(), "unchanged", Code.OK, "every figure"),
        (kernel(notes={"code": "d"}), "same", Code.OK, "another order"),
        (kernel(notes=OTHER, instructions=101.0), "same", Code.OK, "no figure differs by 1.5%"),
        (kernel(notes=OTHER, instructions=110.0), "worse", Code.REGRESSION, "instructions +10.0%"),
        (kernel(notes=OTHER, weighted_global=103.0), "worse", Code.REGRESSION, "global memory +3.0%"),
        (kernel(notes=OTHER, occupancy=80.0), "worse", Code.REGRESSION, "lost occupancy +25.0%"),
        (kernel(notes=OTHER, instructions=90.0), "better", Code.OK, "instructions -10.0%"),
        (kernel(notes=OTHER, instructions=90.0, occupancy=75.0), "needs timing", Code.INCONCLUSIVE, "lost occupancy"),
        (kernel(notes={**OTHER, "access": "b"}), "needs timing", Code.INCONCLUSIVE, "addresses"),
        (kernel(notes={"threads": 256}), "needs timing", Code.INCONCLUSIVE, "blocks, threads"),
        (kernel(notes={"blocks": 9}, wave_quantization=150.0), "worse", Code.REGRESSION, "wave quantization +50.0%"),
    ],
)
def test_each_verdict_has_its_rule_and_exit_code(now, outcome, code, says, tmp_path):
    """Each verdict has a rule and the timing gate's exit code."""
    report = static_report(tmp_path, [kernel(), kernel("draw")], [now, kernel("draw")])
    assert [row.verdict for row in report.rows if row.subject.startswith("cartpole step")] == [outcome]
    (row,) = (row for row in report.rows if row.subject.startswith("cartpole step"))
    assert says in row.why
    assert report.code is code
    shown = report.markdown()
    assert ("cartpole step" in shown) is (outcome != "unchanged")
    assert f"1 {outcome}" in shown or outcome == "unchanged"


def test_local_memory_that_was_not_there_is_new(tmp_path):
    """Local memory that grows from 0 is worse."""
    before, now = (kernel(notes={"code": code}, local_bytes=n) for code, n in (("c", 0.0), ("d", 32.0)))
    report = static_report(tmp_path, [before], [now])
    assert [(row.verdict, row.why) for row in report.rows] == [("worse", "local memory new")]


def test_kernels_on_one_side_and_other_compilers_have_their_codes(tmp_path):
    """Changed sets, compilers and broken kernels exit with 3, 4, 5."""
    assert static_report(tmp_path, [kernel()], [kernel(), kernel("reset")]).code is Code.NOTHING
    other = kernel(notes={"compiler": "nvrtc 12"})
    assert static_report(tmp_path, [kernel()], [other]).code is Code.NOT_COMPARABLE
    point = {name: value for name, value in kernel().point.items() if name not in ("part", "kernel")}
    broken = Record.of(MACHINE_CODE, point, CONTEXT, started=StartTime(), status="failed", reason="no such type")
    report = static_report(tmp_path, [kernel()], [broken])
    assert report.code is Code.BROKEN
    assert [kind for kind, _ in report.problems] == ["broken"]  # not "changed" too: it has a remedy


def static_report(tmp_path, before: list[Record], now: list[Record]) -> Report:
    """Return the report of a gate on two files of records."""
    files = [tmp_path / f"{uuid.uuid4().hex}.jsonl" for _ in range(2)]
    for file, kept in zip(files, (before, now), strict=True):
        for each in kept:
            append(file, each)
    report = report_on(str(files[0]), 0.015, static=True)
    choice = Choice(cases=[], where=[], run_id="r", out=tmp_path, calibrations=tmp_path, static=True, preset="default")
    fill(report, files[1], choice)
    return report


def test_equal_reasons_of_both_sides_are_one_note(monkeypatch):
    """A baseline's install command names this checkout, not its temporary one."""
    monkeypatch.chdir(ROOT)
    (program,) = chosen(["cartpole"], ["pycuda"], None, None, {})
    reasons = [f'no compiler; pip install -e "{folder}[static]"' for folder in ("/tmp/revisions-x/0", ".")]
    both = [list(records._records(program, {"skipped": each}, ["sm_90"], CONTEXT)) for each in reasons]
    report = report_on("main", 0.015, static=True)
    verdict.judge_into(report, *both)
    assert report.notes == [f"left out: {reasons[1]}"]


def compiling(monkeypatch, *names: str, stop=lambda: None, n: int = 99) -> list[str]:
    """Fake the compilation of programs; return the names that were compiled.

    The n-th program calls ``stop``, and has no records; the later ones neither.
    """
    compiled = []

    def fake(programs, archs, context, root, goes_on):
        for program in programs:
            if len(compiled) + 1 >= n:
                stop()
                monkeypatch.setattr(sides, "is_stopping", lambda: True)
                yield []
                continue
            compiled.append(program["name"])
            made = kernel()
            fields = {"run_id": context.run_id, "git": dict(context.git)}
            yield [made.model_copy(update={**fields, "point": {**made.point, "program": program["name"]}})]

    programs = [{"name": name, "backend": "pycuda"} for name in names]
    monkeypatch.setattr(sides, "is_stopping", lambda: False)
    monkeypatch.setattr(sides, "chosen", lambda *_: programs)
    monkeypatch.setattr(sides, "records_of", fake)
    return compiled


def end(*_: object) -> None:
    raise Stopped(signal.SIGTERM)


@pytest.mark.parametrize(("stop", "code"), [(lambda: None, Code.INCONCLUSIVE), (end, 128 + signal.SIGTERM)])
def test_stopped_gate_keeps_finished_programs(stop, code, tmp_path, monkeypatch):
    """A gate that a signal or its time limit ends is resumed where it stopped."""
    names = "cartpole", "acrobot", "pendulum"
    words = ["gate", "--static", "--baseline", "HEAD", "--case", "machine_code", "--out", tmp_path]
    compiled = compiling(monkeypatch, *names, stop=stop, n=6)
    said = bench(*words, exits=code)
    assert compiled == [*names, "cartpole", "acrobot"]
    assert "2 kernels against `HEAD`" in said
    assert "2 unchanged" in said
    assert ("left out: not compiled (1): pendulum on pycuda; --resume" in said) == (code == Code.INCONCLUSIVE)
    assert ("left out: stopped by SIGTERM" in said) == (code != Code.INCONCLUSIVE)
    (file,) = tmp_path.glob("*-b.jsonl")
    assert [each.point["program"] for each in read_all([file])] == ["cartpole", "acrobot"]
    compiled = compiling(monkeypatch, *names)
    assert "3 unchanged" in bench(*words, "--resume", file.name.removesuffix("-b.jsonl"))
    assert compiled == ["pendulum"]


def test_gate_prints_its_duration_first(tmp_path, monkeypatch):
    """The estimate is of both sides; each program prints the remaining time."""
    monkeypatch.setattr(sides, "N_CORES", 2)
    compiling(monkeypatch, "cartpole", "acrobot", "pendulum")
    said = bench("gate", "--static", "--baseline", "HEAD", "--case", "machine_code", "--out", tmp_path).splitlines()
    assert said[0] == "6 programs to compile, about 47 s if nothing is cached"
    assert [line for line in said if line.startswith("3/3")] == [
        "3/3 pendulum on pycuda: 1 kernels, about 0 s left"
    ] * 2


def test_duration_is_of_both_kinds_of_work(monkeypatch, capfd):
    """One core counts, and all compile; without Valgrind nothing is counted."""
    monkeypatch.setattr(sides, "N_CORES", 2)
    side = Work(programs=[{}] * 34, archs=["sm_90"], jobs=[None] * 39)
    for availability, says in (
        (Availability(True), "68 programs to compile and 78 parts to count under Valgrind, about 9 min"),
        (Availability(False), "68 programs to compile, about 5 min"),
    ):
        monkeypatch.setattr(sides.counts, "availability", lambda found=availability: found)
        print_size(side, side)
        assert capfd.readouterr().err == f"{says} if nothing is cached\n"


def test_remaining_time_follows_the_finished_part():
    """A slow machine takes as many times longer for the rest; the start counts once."""
    assert Pace(each_s=2, start_s=10).left(32, 3, 5) == "about 8 s left"
    assert Pace(10).left(30, 1, 3) == "about 60 s left"


def test_environment_outside_the_clone_has_no_revision(monkeypatch, tmp_path):
    """Both sides would import the same code, so nothing could differ."""
    compiled = compiling(monkeypatch, "walk")
    words = "gate", "--static", "--baseline", "HEAD", "--out", tmp_path
    said = bench(*words, "--env", "walk:Walk", exits=Code.BROKEN)
    assert "record it before the change with `python -m bench static --env walk:Walk --out before`" in said
    assert not compiled


def test_programs_after_the_end_are_not_started():
    """Programs that may not start have an empty answer."""
    programs = [{"name": "cartpole", "backend": "pycuda"}] * 3
    assert list(records_of(programs, ["sm_90"], CONTEXT, goes_on=lambda: False)) == [[], [], []]


# ------------------------------------------------------------------ with a compiler


def test_compiled_code_is_kept_by_what_its_headers_say(tmp_path, monkeypatch):
    """The compile cache depends on headers, not on the checkout."""
    kept = []
    monkeypatch.setattr(probe, "cached", lambda key, suffix, make: kept.append(key))
    for folder, more in (("a", ""), ("b", ""), ("b", "// changed")):
        package = tmp_path / folder / "warpdrive_min"
        shutil.copytree(KERNELS, package / "kernels", dirs_exist_ok=True)
        header = package / "kernels" / "core.cuh"
        header.write_text(header.read_text() + more)
        monkeypatch.setattr(cuda_source, "ROOT", package.parent)
        monkeypatch.setattr(cuda_c, "__file__", str(package / "backends" / "cuda_c.py"))
        probe._compiled(package / "kernels" / "reset.cu", {"N_AGENTS": 1}, "sm_90")
    assert kept[0] == kept[1] != kept[2]


def has_tools() -> bool:
    """Return true if machine code can be compiled and read here."""
    try:
        sass.nvdisasm()
    except CompareError:
        return False
    return cuda_c.gpu_compiler() is not None


needs_tools = pytest.mark.skipif(not has_tools(), reason="found no CUDA compiler, or no nvdisasm to read what it makes")


@needs_tools
def test_kernels_are_read_twice_alike(tmp_path, monkeypatch):
    """Reading machine code twice gives equal records.

    A user's module is found in the working folder; `envs` there does not hide the checkout's.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envs.py").write_text("")
    (tmp_path / "mine.py").write_text("import envs\nraise RuntimeError(envs.__file__)\n")
    programs = [*chosen(["resetting"], ["pycuda"], 1_000, None, {})] * 2
    programs += chosen(["mine:Env"], ["pycuda"], None, None, {})
    first, again, (users,) = records_of(programs, ["sm_90"], CONTEXT, n_processes=1)
    place = f"{tmp_path / 'mine.py'}, line 2: RuntimeError: {envs.__file__}"
    assert f"mine:Env must not raise as it is imported ({place})" in users.reason
    assert [each.point["kernel"] for each in first] == ["reset_rows", "undo_done"]
    assert all(each.is_evidence and each.scope == "static" and each.samples_ns is None for each in first)
    rows = first[0]
    assert rows.case == MACHINE_CODE.name
    assert (rows.notes["blocks"], rows.notes["launches"]) == (8, 2)  # of 128 environments each
    assert rows.notes["arrays"]["_done_"] == 4 * 1_000
    assert rows.metrics["global_instructions"].value >= 4
    assert rows.metrics["fp64_instructions"].value == 0
    assert rows.metrics["instructions"].value < rows.metrics["weighted_instructions"].value
    assert not rows.notes["unknown"]
    assert rows.command == "python -m bench static --env resetting --backend pycuda --arch sm_90 --n-envs 1000"
    same = [json.loads(each.to_line()) for each in (rows, again[0])]
    for each in same:
        for name in ("id", "started_at", "duration_s"):
            del each[name]
    assert same[0] == same[1]
