"""What-if over records at the edge: few workers, few links, no rounds, another world."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedhp.engine.replay.whatif import whatif
from fedhp.errors import RunError
from fedhp.record.store import RECORD_FILE
from fedhp.report.whatif import whatif_words
from unit.engine.whatif_runs import recorded


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("own", ["fedhp", "dpsgd", "adpsgd", "pens"])
def test_a_few_workers(own: str, workers: int, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run", own, workers=workers, data={"partition": "iid"}, rounds=3)
    result = whatif(folder)
    assert result.first_difference is None
    assert len(result.planners) >= 5


def test_a_selection_of_links_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhp.record.links.LINKS_PER_WORKER", 1)
    folder = recorded(tmp_path / "run", "fedhp", workers=9)
    result = whatif(folder, ["fedhp:deadline=fill", "dpsgd"])
    assert not result.all_links
    assert result.first_difference is not None
    told = whatif_words(result)[0]
    assert f"plans differently from round {result.first_difference} on" in told
    assert "a selection of the links" in told
    assert any("selection of the links" in text for text in result.planners[0].assumptions)
    assert result.planners[1].sure == "exact"


@pytest.mark.parametrize("column", ["step_time", "bandwidth"])
def test_another_world_than_recorded_is_refused(column: str, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run", "dpsgd", rounds=2)
    with closing(sqlite3.connect(folder / RECORD_FILE)) as connection:
        connection.execute(
            f"UPDATE workers SET {column} = {column} * 1.001 WHERE round = 2 AND worker = 3"
        )
        connection.commit()
    with pytest.raises(RunError, match=r"round 2, worker 3: its \w+( time)? was") as caught:
        whatif(folder, ["dpsgd"])
    assert caught.value.fix


def test_a_run_without_rounds_is_refused(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run", "dpsgd", rounds=0)
    with pytest.raises(RunError, match="has no round yet") as caught:
        whatif(folder)
    assert caught.value.allowed
    assert caught.value.fix
