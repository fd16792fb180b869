"""The doctor, on faked machines."""

from __future__ import annotations

import json
import os
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch

from bench import doctor
from bench.core import nvml
from tests.bench.builders import FakeNvml, bench


@pytest.fixture
def gpu(monkeypatch) -> FakeNvml:
    """Return a cool fake GPU with a moving energy counter."""
    fake = FakeNvml.installed(monkeypatch)
    fake.pids, fake.reasons, fake.samples, fake.degrees, fake.energy = [], [1], 1, 40, iter(range(10**9))
    fake.nvmlClocksEventReasonGpuIdle, fake.nvmlClocksEventReasonApplicationsClocksSetting = 1, 2
    fake.mig, fake.persistence = 0, 1
    fake.nvmlDeviceGetMaxClockInfo = lambda handle, kind: 1980
    fake.nvmlDeviceGetMigMode = lambda handle: [fake.mig, fake.mig]
    fake.nvmlDeviceGetPersistenceMode = lambda handle: fake.persistence
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(nvml, "energy_period_s", lambda read: 0.1 if read() is not None else None)
    return fake


def gpu_findings() -> dict[str, doctor.Finding]:
    return {finding.topic.removeprefix("GPU 0").strip(): finding for finding in doctor._gpus()}


def test_healthy_gpu_is_ok_but_for_its_free_clocks(gpu):
    """A healthy GPU is ok, except for unlocked clocks."""
    found = gpu_findings()
    assert found[""].says == "NVIDIA H200"
    assert {topic for topic, finding in found.items() if finding.level != "ok"} == {"clocks"}
    assert "1500 of at most 1980 MHz, not locked" in found["clocks"].says
    assert "updates every 100 ms: energies over 5 s have an error below 4.0%" in found["energy counter"].says
    assert found["throttling"].says == "not now (idle)"
    assert (gpu.opened, gpu.gpm_samples) == (0, 0)
    gpu.reasons = [2]
    assert gpu_findings()["clocks"].level == "ok"


def test_throttling_and_foreign_processes_are_problems(gpu):
    """Throttling and foreign processes are problems."""
    gpu.reasons, gpu.pids, gpu.degrees = [4 | 64], [os.getpid(), 1], 90
    found = gpu_findings()
    assert found["throttling"].level == found["processes"].level == "problem"
    assert found["throttling"].says == "throttled now by software power cap, hardware thermal"
    assert found["processes"].says.startswith("other processes on this GPU: 1;")
    assert found["temperature"].level == "note"


def test_mig_persistence_and_older_gpus_are_notes(gpu):
    """MIG, no persistence mode and older GPUs are notes.

    They limit telemetry, as do lazy energy counters.
    """
    gpu.mig, gpu.persistence, gpu.has_gpm = 1, 0, False
    found = gpu_findings()
    assert [found[topic].level for topic in ("MIG", "persistence", "GPM")] == ["note"] * 3
    assert "came with Hopper" in found["GPM"].says


def test_gpu_that_is_lost_while_it_is_examined_is_told(gpu):
    """A value that cannot be read is a note with the reason."""

    def lost(*arguments):
        raise RuntimeError("GPU is lost")

    gpu.nvmlDeviceGetTemperature = gpu.nvmlDeviceGetTotalEnergyConsumption = lost
    found = gpu_findings()
    assert found["temperature"].says == found["energy counter"].says == "cannot be read: GPU is lost"
    assert found["throttling"].level == "ok"
    assert gpu.opened == 0


def test_gpu_without_nvml_names_the_install_line(gpu, monkeypatch):
    """Without NVML there is one note, with what to install."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (finding,) = doctor._gpus()
    assert finding.level == "note"
    assert "pip install nvidia-ml-py" in finding.says


def test_no_gpu_is_a_note(monkeypatch):
    """A machine without a GPU is a note.

    It can measure `cpu` and `host`.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (finding,) = doctor._gpus()
    assert finding.level == "note"
    assert "`cpu` and `host` can be measured" in finding.says


@pytest.mark.parametrize(
    ("files", "levels"),
    [
        ({}, ("note", "note")),
        ({"cpu0/cpufreq/scaling_governor": "performance\n", "intel_pstate/no_turbo": "1\n"}, ("ok", "ok")),
        ({"cpu1/cpufreq/scaling_governor": "powersave\n", "intel_pstate/no_turbo": "0\n"}, ("note", "note")),
        ({"cpu0/cpufreq/scaling_governor": "performance\n", "cpufreq/boost": "0\n"}, ("ok", "ok")),
        ({"cpu0/cpufreq/scaling_governor": "schedutil\n", "cpufreq/boost": "1\n"}, ("note", "note")),
    ],
)
def test_governor_and_turbo_are_read(tmp_path, files, levels):
    """Fixed clocks are ok; varying or unreadable ones are notes."""
    for name, text in files.items():
        file = tmp_path / "sys/devices/system/cpu" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (governor,), (turbo,) = doctor._governor(tmp_path), doctor._turbo(tmp_path)
    assert (governor.level, turbo.level) == levels
    if "powersave" in files.values():
        assert "cpupower" in governor.do


@pytest.mark.parametrize(("share", "level"), [(0.03, "ok"), (0.3, "note"), (0.7, "problem"), (None, "note")])
def test_load_is_that_of_other_programs_now(monkeypatch, share, level):
    """A tenth of the cores is a note, half a problem.

    The load average, which a run of our own raised, does not count.
    """
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 99.0, 99.0))
    monkeypatch.setattr(doctor.machine, "OtherProcesses", lambda: SimpleNamespace(busy=lambda: share))
    monkeypatch.setattr(doctor, "LOAD_WINDOW_S", 0.0)
    (finding,) = doctor._load(4)
    assert finding.level == level
    assert finding.says.startswith("cannot be read" if share is None else f"other programs use {share:.0%} of 4 cores")


@pytest.mark.parametrize(("limit", "level"), [(None, "ok"), (8.0, "ok"), (1.5, "problem")])
def test_more_threads_than_the_container_allows_are_a_problem(monkeypatch, tmp_path, limit, level):
    """More threads than the container's CPU limit are a problem.

    Four threads under a limit of 1.5 cores are halted; the advice is one thread.
    """
    seen = {"cores": 16, "cpu_limit": limit, "cpu": "by hand"}
    monkeypatch.setattr(doctor.machine, "fingerprint", lambda device: seen)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(doctor, "LOAD_WINDOW_S", 0.0)
    (finding,) = (each for each in doctor._cpu(tmp_path) if each.topic == "container limit")
    assert finding.level == level
    assert finding.do == ("set OMP_NUM_THREADS=1" if level == "problem" else "")


@pytest.mark.parametrize(
    ("name", "value", "level", "do"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "problem", "unset CUDA_LAUNCH_BLOCKING"),
        ("CUDA_LAUNCH_BLOCKING", "0", "note", ""),
        ("OMP_NUM_THREADS", "2", "note", ""),
        (None, "", "ok", ""),
    ],
)
def test_settings_that_change_what_is_measured_are_told(monkeypatch, name, value, level, do):
    """Environment variables that affect a measurement are reported.

    Some change a figure, and records list them; some make it wrong.
    """
    for each in doctor.machine.SETTINGS:
        monkeypatch.delenv(each, raising=False)
    if name:
        monkeypatch.setenv(name, value)
    (finding,) = doctor._settings()
    assert (finding.level, finding.do) == (level, do)
    assert name is None or f"{name}={value}" in finding.says


def test_simulator_is_a_problem(monkeypatch):
    """Numba's simulator is a problem."""
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    (finding,) = doctor._simulator()
    assert finding.level == "problem"
    assert finding.do == "unset NUMBA_ENABLE_CUDASIM"
    monkeypatch.delenv("NUMBA_ENABLE_CUDASIM")
    (finding,) = doctor._simulator()
    assert finding.level == "ok"


@pytest.mark.parametrize(
    ("state", "level"),
    [
        ({"sha": None, "dirty": None, "unread": "no git checkout"}, "note"),
        ({"sha": "0123456789", "dirty": None, "unread": "named"}, "ok"),
        ({"sha": "0123456789", "dirty": True}, "note"),
        ({"sha": "0123456789", "dirty": False}, "ok"),
    ],
)
def test_git_state_is_judged(monkeypatch, state, level):
    """Uncommitted changes or a missing commit are notes.

    Others cannot repeat such figures.
    """
    monkeypatch.setattr(doctor.machine, "git_state", lambda root: state)
    (finding,) = doctor._git()
    assert finding.level == level


def test_full_disk_is_a_note(monkeypatch, tmp_path):
    """Too little room for compiled kernels is a note."""
    monkeypatch.setenv("WARPDRIVE_MIN_CACHE", str(tmp_path / "not" / "yet"))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**20))
    kernels, _ = doctor._disk()
    assert kernels.level == "note"
    assert "free some disk space" in kernels.do
    assert not (tmp_path / "not").exists(), "nothing is changed"


def test_missing_backends_are_notes_with_their_install_line():
    """Each missing backend is a note with its install line."""
    states = doctor.availability()
    found = {finding.topic: finding for finding in doctor._backends()}
    assert found["backend cpu"].level == "ok"
    for name, state in states.items():
        assert (found[f"backend {name}"].level == "ok") == state.available
        assert found[f"backend {name}"].do == state.install
    cases = {finding.topic: finding for finding in doctor._cases()}
    assert set(cases) == {f"case {name}" for name in doctor.CASES}
    if missing := [name for name, state in states.items() if not state.available]:
        assert all(name in cases["case env_step"].says for name in missing)


def test_command_prints_words_or_json_and_exits_with_problems(monkeypatch):
    """`bench doctor` exits with 1 if there is a problem."""
    well = doctor.Finding("well", "ok", "all is well")
    ill = doctor.Finding("ill", "problem", "it hurts", "rest")
    monkeypatch.setattr(doctor, "examine", lambda: [well])
    assert bench("doctor") == "ok      well: all is well\n1 ok, 0 note, 0 problem\n"
    monkeypatch.setattr(doctor, "examine", lambda: [well, ill])
    _, last = json.loads(bench("doctor", "--json", exits=1))
    assert last == {"topic": "ill", "level": "problem", "says": "it hurts", "do": "rest"}


def test_this_machine_is_examined_whole():
    """Each part of this machine has a finding."""
    found = doctor.examine()
    topics = " ".join(finding.topic for finding in found)
    for part in ("simulator", "backend", "compiler", "CPU", "load", "GPU", "git", "cache", "case"):
        assert part in topics
    assert all(finding.do for finding in found if finding.level == "problem")
