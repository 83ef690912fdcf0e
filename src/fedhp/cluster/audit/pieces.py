"""Whose record of a round counts, of a run that several coordinators led, by their histories."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedhp.cluster.audit.timeline import LeadershipTerm
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.errors import RunError
from fedhp.record.store import FILE

FOLDERS = "the --out folders of `fedhp coordinator`, workers/NAME/coordinator of a standby"


@dataclass(frozen=True, slots=True)
class Piece:
    """Rounds in a row that one coordinator led in one epoch."""

    first: int
    last: int
    coordinator: str
    epoch: int
    folder: Path  # of its record

    @property
    def rounds(self) -> str:
        """In words."""
        return _rounds(self.first, self.last)


def pieces_of(
    terms: Sequence[LeadershipTerm], recorded: Mapping[Path, Collection[int]], *, rounds: int = 0
) -> tuple[Piece, ...]:
    """Whose row of every round counts, given the rounds that the record of each folder has.

    The terms are in the order of their epochs. `rounds` is how many there must be at least, where
    that is known. RunError names the rounds that are missing and who led them.
    """
    epochs = epochs_of(terms)
    leaders = {term.epoch: term for term in terms}
    led = {index: leaders[epoch] for index, epoch in epochs.items() if epoch in leaders}
    pieces: list[Piece] = []
    missing: list[int] = []
    for index in range(1, max(rounds, *epochs, 0) + 1):
        term = led.get(index)
        if term is None or index not in recorded.get(term.folder, ()):
            missing.append(index)
        elif pieces and (pieces[-1].epoch, pieces[-1].last) == (term.epoch, index - 1):
            pieces[-1] = replace(pieces[-1], last=index)
        else:
            pieces.append(Piece(index, index, term.who, term.epoch, term.folder))
    if missing:
        raise _missing(missing, epochs, terms, led=led)
    return tuple(pieces)


def epochs_of(terms: Sequence[LeadershipTerm]) -> dict[int, int]:
    """In which epoch every round was committed, as far as the histories tell.

    A round counts that its coordinator says to be committed, or that another one went on from;
    so do all rounds before it in the same term, whose lines a power cut may have taken. Of
    several epochs the largest counts.
    """
    known = {Attempt.from_facts(event) for term in terms for event in term.named("commit")}
    known |= {term.stand for term in terms} - {INITIAL}
    stood = {term.epoch: term.stand.round_index for term in terms}
    told: dict[int, list[int]] = {}
    for attempt in known:
        told.setdefault(attempt.epoch, []).append(attempt.round_index)
    return {
        index: epoch
        for epoch, rounds in sorted(told.items())
        for index in range(stood.get(epoch, min(rounds) - 1) + 1, max(rounds) + 1)
    }


def _missing(
    missing: Sequence[int],
    epochs: Mapping[int, int],
    terms: Sequence[LeadershipTerm],
    *,
    led: Mapping[int, LeadershipTerm],
) -> RunError:
    """One error for all gaps."""
    gaps: list[list[int]] = []
    for index in missing:
        if gaps and gaps[-1][-1] == index - 1 and led.get(index) is led.get(index - 1):
            gaps[-1].append(index)
        else:
            gaps.append([index])
    told = []
    for gap in gaps:
        term = led.get(gap[0])
        if term is not None:
            words = f"{term.who} (epoch {term.epoch}), not in {term.folder / FILE}"
        else:
            words = f"a coordinator whose folder is not given{_when(gap, epochs, terms, led=led)}"
        told.append(f"{_rounds(gap[0], gap[-1])}, led by {words}")
    return RunError(
        f"the folders do not have all rounds: {'; '.join(told)}",
        allowed=f"the folders of all coordinators that led a round: {FOLDERS}",
        fix=f"add the missing folder, or copy it anew with all its files ({FILE}-wal, too)",
    )


def _when(
    gap: Sequence[int],
    epochs: Mapping[int, int],
    terms: Sequence[LeadershipTerm],
    *,
    led: Mapping[int, LeadershipTerm],
) -> str:
    """What is known of somebody whose own history is not there."""
    words = []
    before, epoch = led.get(gap[0] - 1), epochs.get(gap[-1])
    if before is not None:
        words.append(f"after {before.who} (epoch {before.epoch})")
    if epoch is not None:
        after = next((term for term in terms if term.epoch > epoch), None)
        if after is not None:
            words.append(f"before {after.who} (epoch {after.epoch})")
        every = all(epochs.get(index) == epoch for index in gap)
        words.append(f"in epoch {epoch}" if every else f"the last of them in epoch {epoch}")
    return f" ({', '.join(words)})" if words else ""


def _rounds(first: int, last: int) -> str:
    return f"round {first}" if first == last else f"rounds {first} to {last}"
