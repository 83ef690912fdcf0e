"""Replay of a recorded world, and every complaint about a trace that does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhp.config import WorldConfig, parse
from fedhp.errors import ConfigError, DataError, FedhpError
from fedhp.world import build_world
from fedhp.world.trace import Trace, read_trace


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def read(folder: Path, text: str, workers: int = 2) -> Trace:
    return read_trace(write(folder, text), workers=workers)


def test_a_value_holds_until_the_next(tmp_path: Path) -> None:
    text = "time,worker,bandwidth,step_time\n5,0,2,0.1\n5,1,3,0.2\n10,0,4,\n20,1,,0.4\n"
    trace = read(tmp_path, text)
    assert not trace.per_link
    seen = [trace.bandwidth_at(t, 8e6).tolist() for t in (0.0, 5.0, 9.9, 10.0, 1e6)]
    assert seen == [[16e6, 24e6]] * 3 + [[32e6, 24e6]] * 2
    assert [trace.step_time_at(1, t) for t in (0.0, 19.9, 20.0)] == [0.2, 0.2, 0.4]
    assert trace.step_time_at(0, 99.0) == 0.1


def test_a_byte_order_mark_is_not_part_of_the_header(tmp_path: Path) -> None:
    assert read(tmp_path, "\ufefftime,worker,step_time\n0,0,1\n0,1,2\n").step_time_at(1, 0.0) == 2


def test_bandwidth_of_links(tmp_path: Path) -> None:
    text = "time,worker,peer,bandwidth\n0,1,0,2\n0,0,2,3\n0,2,1,4\n7,0,1,5\n"
    trace = read(tmp_path, text, workers=3)
    assert trace.per_link
    matrix = trace.bandwidth_at(3.0, 1e6)
    assert (matrix == matrix.T).all()
    assert matrix[np.triu_indices(3, 1)].tolist() == [2e6, 3e6, 4e6]
    assert trace.bandwidth_at(7.0, 1e6)[1, 0] == 5e6


def test_only_step_times_or_only_bandwidth(tmp_path: Path) -> None:
    steps = read(tmp_path, "time,worker,step_time\n0,0,0.1\n0,1,0.2\n")
    assert not steps.bandwidth
    assert steps.step_time_at(1, 3.0) == 0.2
    links = read(tmp_path, "time,worker,bandwidth\n0,0,1\n0,1,2\n")
    assert not links.step_time


def test_equal_times_the_later_row_counts(tmp_path: Path) -> None:
    trace = read(tmp_path, "time,worker,bandwidth\n0,0,1\n0,0,2\n0,1,3\n")
    assert trace.bandwidth_at(0.0, 1.0).tolist() == [2, 3]


def test_lines_presence_and_other_time(tmp_path: Path) -> None:
    text = (
        "time,worker,uplink,downlink,available,other_time\n"
        "0,0,1,4,1,0.5\n0,1,2,2,0,\n8,0,,,0,\n10,1,3,1,1,\n20,0,,,1,0.25\n"
    )
    trace = read(tmp_path, text)
    assert trace.has_links
    up, down = trace.lines_at(12.0, 1e6)
    assert (up.tolist(), down.tolist()) == ([1e6, 3e6], [4e6, 1e6])
    assert [trace.next_change(time) for time in (0.0, 10.0)] == [10.0, np.inf]
    here = [trace.available_at(time).tolist() for time in (0.0, 9.0, 11.0, 21.0)]
    assert here == [[True, False], [False, False], [False, True], [True, True]]
    assert trace.seconds_away(9.0).tolist() == [11.0, 1.0]
    assert [trace.other_time_at(0, time) for time in (0.0, 30.0)] == [0.5, 0.25]
    assert trace.other_time_at(1, 5.0) == 0.0
    config = WorldConfig.model_validate(
        {"trace": str(tmp_path / "trace.csv"), "bandwidth": {"unit": "Mb/s"}}
    )
    world = build_world(config, workers=2, rounds=5, seed=0, model_bits=12e6)
    pair = np.array([[0, 1]])
    nothing: dict[str, Any] = {
        "transfers": np.zeros(2, np.int64),
        "clock": 0.0,
        "ready": np.zeros(2),
    }
    assert world.link_time(pair, **nothing).tolist() == [12.0]  # both ways: 1 Mb/s
    assert world.link_time(pair, **nothing, directed=True).tolist() == [6.0]  # 0 pulls at 2
    assert world.link_time(pair[:, ::-1], **nothing, directed=True).tolist() == [12.0]
    assert world.available(1, 9.0).tolist() == [False, True]  # it comes back first
    assert world.other_times(0.0).tolist() == [0.5, 0.0]


def test_a_repeated_trace_begins_again(tmp_path: Path) -> None:
    """Rows 10 s apart, so that the last one holds for 10 s: 30 s in all."""
    text = "time,worker,bandwidth,step_time,available\n" + "".join(
        f"{time},{worker},{1 + time / 10},{0.1 + time / 100},{int(worker == 1 or time == 10)}\n"
        for time in (0, 10, 20)
        for worker in (0, 1)
    )
    path = write(tmp_path, text)
    once, again = (read_trace(path, workers=2, repeat=repeat) for repeat in (False, True))
    assert (once.length, again.length) == (np.inf, 30.0)
    for time in (0.0, 5.0, 10.0, 25.0):
        for later in (0, 30, 300):
            assert again.bandwidth_at(time + later, 1.0).tolist() == (
                once.bandwidth_at(time, 1.0).tolist()
            )
            assert again.step_time_at(0, time + later) == once.step_time_at(0, time)
            assert (again.available_at(time + later) == once.available_at(time)).all()
    assert [once.next_change(time) for time in (0.0, 20.0, 99.0)] == [10.0, np.inf, np.inf]
    assert [again.next_change(time) for time in (0.0, 20.0, 99.0)] == [10.0, 30.0, 100.0]
    assert once.seconds_away(21.0).tolist() == [np.inf, 0.0]
    assert again.seconds_away(21.0).tolist() == [19.0, 0.0]
    time = 0.0
    for _ in range(10_000):  # never the same moment twice, or a transfer would not end
        assert again.next_change(time) > time
        time = again.next_change(time)
    assert time == pytest.approx(100_000)
    constant = write(tmp_path, "time,worker,bandwidth\n0,0,1\n0,1,1\n")
    with pytest.raises(DataError, match="nothing to repeat"):
        read_trace(constant, workers=2, repeat=True)
    with pytest.raises(ConfigError, match=r"world\.trace is not set"):
        parse({"world": {"trace_repeat": True}})


HEAD = "time,worker,peer,bandwidth,step_time\n"
BAD: dict[str, tuple[str, type[FedhpError], str, str]] = {
    "an unknown column": (
        "time,worker,speed\n0,0,1\n",
        DataError,
        r"line 2: the columns are time, worker, speed",
        "header line",
    ),
    "no time": (
        "worker,bandwidth\n0,1\n",
        DataError,
        r"line 2: the columns are worker, bandwidth",
        "header line",
    ),
    "no worker": (
        "time,bandwidth\n0,1\n",
        DataError,
        r"the columns are time, bandwidth",
        "header line",
    ),
    "too many values in a row": (
        "time,worker,bandwidth\n0,0,1,7\n",
        DataError,
        r"line 2: it has more cells than the header line has columns",
        "extra cells",
    ),
    "a time that is no number": (
        HEAD + "soon,0,,1,\n",
        DataError,
        r"line 2: time is 'soon'",
        "that line",
    ),
    "a negative time": (HEAD + "-1,0,,1,\n", DataError, r"line 2: time is '-1'", "that line"),
    "an infinite time": (
        HEAD + "inf,0,,1,\n",
        DataError,
        r"line 2: time is 'inf'",
        "that line",
    ),
    "a time that is not there": (
        HEAD + "\n0,0,,1,\n,1,,1,\n",
        DataError,
        r"line \d: time is ''",
        "that line",
    ),
    "a row cut short": ("time,worker\n0\n", DataError, r"worker is None", "that line"),
    "a worker too many": (
        HEAD + "0,2,,1,\n",
        DataError,
        r"line 2: worker is '2'",
        "set workers to the number in the trace",
    ),
    "a worker that is no number": (
        HEAD + "0,one,,1,\n",
        DataError,
        r"line 2: worker is 'one'",
        "that line",
    ),
    "a negative worker": (HEAD + "0,-1,,1,\n", DataError, r"worker is '-1'", "that line"),
    "a peer too many": (HEAD + "0,0,9,1,\n", DataError, r"line 2: peer is '9'", "that line"),
    "no bandwidth at all": (
        HEAD + "0,0,,0,\n",
        DataError,
        r"line 2: bandwidth is '0'",
        "that line",
    ),
    "a step that takes no time": (
        HEAD + "0,0,,,-0.1\n",
        DataError,
        r"line 2: step_time is '-0.1'",
        "that line",
    ),
    "a step time that is no number": (
        HEAD + "0,0,,,nan\n",
        DataError,
        r"line 2: step_time is 'nan'",
        "that line",
    ),
    "times that fall": (
        HEAD + "5,0,,1,\n4,0,,1,\n",
        DataError,
        r"line 3: time 4 comes after 5",
        "sort the file by time",
    ),
    "presence that is neither": (
        "time,worker,available\n0,0,yes\n",
        DataError,
        r"line 2: available is 'yes'",
        "that line",
    ),
    "other time below zero": (
        "time,worker,other_time\n0,0,-1\n",
        DataError,
        r"line 2: other_time is '-1'",
        "that line",
    ),
    "an uplink that is no number": (
        "time,worker,uplink,downlink\n0,0,nan,1\n",
        DataError,
        r"line 2: uplink is 'nan'",
        "that line",
    ),
    "only one direction": (
        "time,worker,uplink\n0,0,1\n0,1,1\n",
        DataError,
        r"uplink and downlink do not belong to the same workers",
        "both columns",
    ),
    "bandwidth and lines": (
        "time,worker,bandwidth,uplink,downlink\n0,0,1,,\n0,1,,1,1\n",
        DataError,
        r"some rows have bandwidth, some uplink",
        "both columns",
    ),
    "a worker without lines": (
        "time,worker,uplink,downlink\n0,0,1,1\n",
        ConfigError,
        r"has no values for worker 1",
        "set workers to the number in the trace",
    ),
    "no rows": (HEAD, DataError, r"no values", "record a trace"),
    "an empty file": ("", DataError, r"no values", "remove world.trace"),
    "rows without values": (HEAD + "0,0,,,\n", DataError, r"no values", "record a trace"),
    "a worker without bandwidth": (
        HEAD + "0,0,,1,\n",
        ConfigError,
        r"^world.trace: .* has no values for worker 1, but workers = 2",
        "set workers to the number in the trace",
    ),
    "a worker without step times": (
        HEAD + "0,0,,1,0.1\n0,1,,1,\n",
        ConfigError,
        r"has no values for worker 1",
        "set workers to the number in the trace",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_trace(tmp_path: Path, name: str) -> None:
    text, kind, problem, fix = BAD[name]
    with pytest.raises(kind, match=problem) as caught:
        read(tmp_path, text)
    assert fix in str(caught.value)
    assert "allowed:" in str(caught.value)
    assert "trace.csv" in str(caught.value)


def test_a_link_without_bandwidth(tmp_path: Path) -> None:
    text = "time,worker,peer,bandwidth\n0,0,1,1\n0,0,2,1\n"
    with pytest.raises(ConfigError, match=r"has no values for link \(1, 2\), but workers = 3"):
        read(tmp_path, text, workers=3)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.csv: cannot be read: .*No such file"):
        read_trace(tmp_path / "nowhere.csv", workers=2)
    binary = tmp_path / "trace.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"cannot be read"):
        read_trace(binary, workers=2)
    broken = write(tmp_path, 'time,worker\n"0,1\n')
    with pytest.raises(DataError, match=r"cannot be read"):
        read_trace(broken, workers=2)
