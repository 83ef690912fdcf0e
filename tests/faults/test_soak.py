"""The judgement of a soak run, on invented samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from faults.soak import disk_of, last_commit
from faults.soak_report import (
    ProcessSample,
    Sample,
    judge,
    lines_of,
    read_samples,
    write_sample,
)
from fedhp.cluster.history import History

MB = 1_000_000
STEADY = ProcessSample(
    name="w0", pid=1, role="worker", rss=300 * MB, uss=50 * MB, fds=30, threads=17, cpu=0.0
)
SHORT_LIVED = replace(STEADY, name="w7")


def invented(
    *, hours: float = 2.0, change: Callable[[Sample], Sample] = lambda sample: sample
) -> list[Sample]:
    """A sample every 10 s and a round every 2 s; w7 is restarted every 200 s."""
    samples = []
    for number in range(int(360 * hours)):
        processes = (
            replace(STEADY, cpu=0.1 * number),
            replace(SHORT_LIVED, pid=100 + number // 20, cpu=0.1 * (number % 20)),
        )
        disk = {"histories": 40_000 * number, "workers": 5 * MB, "etcd": 64 * MB}
        sample = Sample(10.0 * number, 5 * number, processes, disk, {"kill worker": number // 20})
        samples.append(change(sample))
    return samples


def grown(key: str, amount: Callable[[Sample], float], *, pid: int) -> Callable[[Sample], Sample]:
    """One value of a process (or of all processes above 99) becomes larger with time."""

    def change(sample: Sample) -> Sample:
        processes = tuple(
            replace(process, **{key: getattr(process, key) + int(amount(sample))})
            if process.pid == pid or (pid > 99 and process.pid > 99)
            else process
            for process in sample.processes
        )
        return replace(sample, processes=processes)

    return change


def test_a_steady_run_passes_with_its_figures() -> None:
    report = judge(invented())
    assert not report.problems
    (steady,) = report.lifetimes
    assert (steady.name, steady.rss.start, steady.fds["worker"].end) == ("w0", 300 * MB, 30)
    assert steady.rss_growth == pytest.approx(0)
    (workers,) = report.roles
    assert workers.processes == 1 + 36
    assert report.disk["run folder"].start == pytest.approx(8000)
    assert report.rounds == 5 * 719
    assert report.cores == pytest.approx(0.02, rel=0.1)
    assert "passed" in list(lines_of(report))[-1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        # 4 % per hour is allowed, 6 % is not.
        (grown("rss", lambda sample: 12 * MB * sample.at / 3600, pid=1), ""),
        (grown("rss", lambda sample: 18 * MB * sample.at / 3600, pid=1), "w0: RSS grows by"),
        # A leak of descriptors in a process that lives on.
        (grown("fds", lambda sample: sample.at / 1200, pid=1), "w0 as worker: 30 file descriptors"),
        # A restarted process opens more and more, because of what its folder holds.
        (grown("fds", lambda sample: sample.at / 300, pid=100), "all processes that are worker"),
    ],
)
def test_growth_of_a_process_is_judged(change: Callable[[Sample], Sample], problem: str) -> None:
    problems = judge(invented(change=change)).problems
    assert any(problem in text for text in problems) if problem else not problems


def test_the_memory_of_etcd_is_shown_but_not_judged() -> None:
    growth = grown("rss", lambda sample: 90 * MB * sample.at / 3600, pid=1)

    def change(sample: Sample) -> Sample:
        first, *others = growth(sample).processes
        return replace(sample, processes=(replace(first, name="etcd", role="etcd"), *others))

    report = judge(invented(change=change))
    assert not report.problems
    (etcd,) = report.lifetimes
    assert etcd.rss_growth is not None
    assert etcd.rss_growth > 20


def test_rounds_that_write_more_and_more_are_a_problem() -> None:
    def quadratic(sample: Sample) -> Sample:
        size = sample.disk["histories"] + sample.round_index**2
        return replace(sample, disk=sample.disk | {"histories": size})

    (problem,) = judge(invented(change=quadratic)).problems
    assert problem.startswith("disk: ")


def test_a_short_run_is_not_extrapolated() -> None:
    fast = grown("rss", lambda sample: 60 * MB * sample.at / 3600, pid=1)
    report = judge(invented(hours=0.2, change=fast))
    assert [process.rss_growth for process in report.lifetimes] == [None]
    assert not report.problems
    (problem,) = judge(invented(hours=0.02)).problems
    assert "too short" in problem


def test_samples_are_kept_in_a_file(tmp_path: Path) -> None:
    samples = invented(hours=0.05)
    for sample in samples:
        write_sample(sample, tmp_path / "samples.jsonl")
    assert read_samples(tmp_path / "samples.jsonl") == samples


def test_what_is_measured_of_a_folder(tmp_path: Path) -> None:
    history = History(tmp_path, "c0")
    for number in range(1, 2000):
        history.append("commit", {"round": number, "attempt": 1, "epoch": 1})
    history.close()
    assert last_commit(tmp_path / "history-c0.jsonl") == 1999
    assert last_commit(tmp_path / "history-c1.jsonl") == 0
    (tmp_path / "workers" / "w0").mkdir(parents=True)
    (tmp_path / "workers" / "w0" / "model.safetensors").write_bytes(bytes(100))
    sizes = disk_of(tmp_path)
    assert sizes["workers"] == 100
    assert sizes["histories"] == (tmp_path / "history-c0.jsonl").stat().st_size
