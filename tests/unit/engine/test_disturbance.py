"""Compression, robust mixing and attacks in simulations: bytes and bits of the network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedhp.algorithms.pens import PENS
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.codec import IncomingModels, ModelCodec, OutgoingModel
from fedhp.config import AttackConfig, ExchangeConfig, load, parse, to_tables
from fedhp.engine.prepare import shard_spec_of
from fedhp.engine.runs.run import checkpoint_of, loop_of, restore
from fedhp.engine.shard.arrivals import WHOLE, Arrivals
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import ConfigError
from fedhp.exchange import DirectedMixing, WeightedMixing
from fedhp.exchange.base import Exchange
from fedhp.learn.attack import attackers_of, poisoned
from fedhp.learn.params import Layout, Slot
from fedhp.learn.topk import COPY_ROUNDS
from fedhp.timing import Network
from unit.engine.runs import EXACT, NORMED, bits, carry_out, prepared_of

SIZE: dict[str, Any] = {
    "workers": 7,
    "rounds": 4,
    "training": {"local_steps": 2, "batch_size": 4},
    "evaluation": {"every": 2, "images": 60},
    "world": {"model_megabits": 12.0},
}
MANY: dict[str, Any] = {"workers": 10}
FLIP: dict[str, Any] = {"attack": {"kind": "sign_flip", "share": 0.3}}
LAYOUT = Layout((Slot("a", (20, 30), 0, 600), Slot("b", (200,), 600, 800)), (), 700, 800, 800, 0)


def rows(count: int) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(1)
    start = rng.standard_normal(800)
    steps = 0.1 * rng.standard_normal((count, 800))
    return [(start + step).astype(np.float32) for step in np.cumsum(steps, axis=0)]


def arrivals_of(exchange: ExchangeConfig) -> Arrivals:
    return Arrivals(replace(shard_spec_of(prepared_of("dpsgd")), exchange=exchange, layout=LAYOUT))


def pulled(outgoing: OutgoingModel, incoming: IncomingModels) -> tuple[str, NDArray[np.float32]]:
    base, receiver = incoming.begin("sender")
    encoded = outgoing.take("reader", base)
    for chunk in encoded.chunks(wire.Envelope(version=1)):
        receiver.push(chunk)
    return encoded.encoding, incoming.finish("sender", receiver)


@pytest.mark.parametrize("compression", ["none", "fp16", "int8", "topk"])
def test_what_arrives_has_the_bits_of_the_network(compression: str) -> None:
    """Over many rounds, one of them after the copies were dropped."""
    codec = ModelCodec(LAYOUT)
    outgoing = OutgoingModel(codec, compression=compression, share=0.05)
    incoming = IncomingModels(codec, compression=compression)
    share = {"topk_share": 0.05} if compression == "topk" else {}
    arrivals = arrivals_of(ExchangeConfig.model_validate({"compression": compression, **share}))
    last = 5 + COPY_ROUNDS + 1
    for round_index, row in zip([1, 2, 3, 5, last, last + COPY_ROUNDS], rows(6), strict=True):
        outgoing.copies.begin_round(round_index)
        incoming.copies.begin_round(round_index)
        outgoing.offer(row)
        encoding, expected = pulled(outgoing, incoming)
        arrivals.begin(round_index)
        sent = arrivals.sent(3, torch.from_numpy(row))
        received = arrivals.received(8, 3, sent)
        assert received.numpy().tobytes() == expected.tobytes()
        if compression == "topk":
            whole = round_index in (1, last)
            assert encoding == ("raw" if whole else "topk")
            assert arrivals.delta_counts().tolist() == [[8, 3, WHOLE if whole else 40]]
        arrivals.commit()


def test_a_round_that_is_given_up_leaves_the_copies_as_they_were() -> None:
    first, second, third = rows(3)
    arrivals = arrivals_of(ExchangeConfig(compression="topk"))
    arrivals.begin(1)
    arrivals.received(0, 1, torch.from_numpy(first))
    arrivals.commit()
    before = bits(arrivals.state())
    arrivals.begin(2)
    arrivals.received(0, 1, torch.from_numpy(second))
    assert bits(arrivals.state()) == before
    arrivals.begin(2)
    once = arrivals.received(0, 1, torch.from_numpy(third)).clone()
    other = arrivals_of(ExchangeConfig(compression="topk"))
    arrivals.begin(2)
    other.load(arrivals.state(), torch.device("cpu"))
    other.begin(2)
    assert torch.equal(other.received(0, 1, torch.from_numpy(third)), once)


# --- attacks -------------------------------------------------------------------------------


def test_who_attacks_depends_on_the_seed_alone() -> None:
    kinds = [AttackConfig.model_validate({"kind": kind}) for kind in ("sign_flip", "label_flip")]
    assert len({attackers_of(kind, workers=20, seed=4) for kind in kinds}) == 1
    seeds = {attackers_of(kinds[0], workers=20, seed=seed) for seed in range(20)}
    assert len(seeds) > 15
    assert {len(drawn) for drawn in seeds} == {4}
    assert attackers_of(AttackConfig(), workers=20, seed=4) == ()
    assert len(attackers_of(AttackConfig(kind="noise", share=0.01), workers=20, seed=4)) == 1


def test_what_an_attacker_sends() -> None:
    row = rows(1)[0]

    def sent(round_index: int = 1, worker: int = 2, **attack: Any) -> NDArray[np.float32]:
        settings = AttackConfig.model_validate(attack)
        return poisoned(
            row, settings, trainable=700, seed=3, worker=worker, round_index=round_index
        )

    flipped = sent(kind="sign_flip", scale=2.0)
    assert np.array_equal(flipped[:700], -2 * row[:700])
    assert np.array_equal(flipped[700:], row[700:]), "statistics stay as they are"
    noisy = sent(kind="noise", scale=0.5)
    assert np.std(noisy[:700] - row[:700]) == pytest.approx(0.5, rel=0.1)
    assert np.array_equal(noisy, sent(kind="noise", scale=0.5))
    assert not np.array_equal(noisy, sent(2, kind="noise", scale=0.5))
    assert not np.array_equal(noisy, sent(1, 3, kind="noise", scale=0.5))
    assert np.isfinite(1e35 * sent(kind="sign_flip", scale=1.0)).all()
    assert sent(kind="label_flip") is row


def test_the_tests_are_those_of_the_honest_workers() -> None:
    prepared = prepared_of("dpsgd", SIZE, EXACT, FLIP)
    assert len(prepared.attackers) == 2
    records, _ = carry_out(LocalExecutor(prepared))
    evaluation = records[-1].evaluation
    assert evaluation is not None
    assert np.flatnonzero(np.isnan(evaluation.accuracy)).tolist() == list(prepared.attackers)
    honest = np.delete(evaluation.accuracy, prepared.attackers)
    assert evaluation.mean_accuracy == honest.mean()

    engine = LocalExecutor(prepared)
    models = engine.shard.rows.models
    models[list(prepared.attackers)] = 1e6
    honest_models = np.delete(models.numpy(), prepared.attackers, axis=0)
    np.testing.assert_allclose(engine._mean_model(), honest_models.mean(axis=0), rtol=1e-6)
    engine.close()


def test_flipped_labels_are_those_of_the_attackers_alone() -> None:
    plain = prepared_of("dpsgd", SIZE, EXACT)
    prepared = prepared_of("dpsgd", SIZE, EXACT, {"attack": {"kind": "label_flip", "share": 0.3}})
    for worker in range(7):
        before = plain.dataset.train_targets[plain.parts[worker]]
        after = prepared.dataset.train_targets[prepared.parts[worker]]
        attacks = worker in prepared.attackers
        assert np.array_equal(after, 9 - before if attacks else before)
        inputs = prepared.dataset.train_inputs[prepared.parts[worker]]
        assert np.array_equal(inputs, plain.dataset.train_inputs[plain.parts[worker]])


def test_sign_flips_hurt_the_mean_and_not_the_trimmed_mean() -> None:
    study = {"rounds": 30, "training": {"local_steps": 5, "batch_size": 16}}
    study |= {"workers": 10, "data": {"partition": "iid"}, "evaluation": {"every": 30}}
    world = {"data": {"name": "digits", "skew": None}, "model": {"name": "mlp", "hidden": [16]}}
    accuracy = {}
    for name, changes in {
        "clean": {},
        "hurt": FLIP,
        "guarded": {**FLIP, "exchange": {"robust": "trimmed_mean", "trim": 0.3}},
    }.items():
        records, _ = carry_out(LocalExecutor(prepared_of("dpsgd", world, study, changes)))
        accuracy[name] = records[-1].accuracy or 0.0
    assert accuracy["guarded"] > accuracy["clean"] - 0.05
    assert accuracy["hurt"] < accuracy["clean"] - 0.1


# --- the clock, peers, resume --------------------------------------------------------------


@pytest.mark.parametrize("during_transfer", ["fixed", "trace"])
def test_smaller_models_take_less_time_and_fewer_bytes(during_transfer: str) -> None:
    world = {"world": {"bandwidth": {"during_transfer": during_transfer, "low": 0.5, "high": 0.5}}}
    plain = carry_out(LocalExecutor(prepared_of("dpsgd", SIZE, EXACT, world)))[0][0]
    for compression, share in (("fp16", 0.5), ("int8", (460 + 4 * 4) / (4 * 460))):
        changes = {"exchange": {"compression": compression}}
        prepared = prepared_of("dpsgd", SIZE, EXACT, world, changes)
        smaller = carry_out(LocalExecutor(prepared))[0][0]
        assert prepared.layout.mixed_ends[3:] == (460,), "four tensors"
        np.testing.assert_allclose(smaller.link_time, share * plain.link_time)
        np.testing.assert_allclose(smaller.link_bytes, share * plain.link_bytes, atol=2)
        assert smaller.clock < plain.clock


def test_topk_sends_whole_models_first() -> None:
    changes = {"exchange": {"compression": "topk", "topk_share": 0.1}}
    records, _ = carry_out(LocalExecutor(prepared_of("dpsgd", SIZE, EXACT, changes)))
    sent = [record.bytes_sent for record in records]
    assert sent[1] == sent[2] == sent[3] == pytest.approx(0.2 * sent[0], rel=1e-6)
    assert records[1].link_time.mean() < 0.5 * records[0].link_time.mean()


def test_robust_rules_get_enough_peers() -> None:
    plain = carry_out(LocalExecutor(prepared_of("dpsgd", SIZE, EXACT)))[0][0]
    changes = {"exchange": {"robust": "median", "trim": 0.3}}
    guarded = carry_out(LocalExecutor(prepared_of("dpsgd", SIZE, EXACT, changes)))[0][0]
    assert np.bincount(plain.links.ravel()).min() == 2
    assert np.bincount(guarded.links.ravel()).min() >= 4


@pytest.mark.parametrize("symmetric", [False, True])
def test_pens_has_enough_peers_in_both_stages(symmetric: bool) -> None:
    """Of the peers that were kept often there may be fewer in the second stage: others are added,
    the fastest first."""
    changes = {"exchange": {"robust": "median", "trim": 0.3}, "rounds": 8}
    for absent in ({}, {"world": {"away": [{"worker": 3, "first": 5, "last": 8}]}}):
        prepared = prepared_of(
            "pens", SIZE, EXACT, changes, absent, keep=4, peers=5, symmetric=symmetric
        )
        records, _ = carry_out(LocalExecutor(prepared))
        for record in records:
            present = np.flatnonzero(record.local_steps > 0)
            drawn = record.round_index > 4
            ends = record.links.ravel() if symmetric and drawn else record.links[:, 0]
            assert np.bincount(ends, minlength=7)[present].min() >= 4
            assert np.isin(record.links, present).all()


def test_sources_are_added_the_fastest_first() -> None:
    network = Network(np.array([1e6, 9e6, 8e6, 5e6, 7e6, 6e6]), 1e6)
    here = np.array([True, True, True, True, True, False])
    sources = np.array([[1, -1], [0, 3], [-1, -1], [4, 1], [-1, 0], [-1, -1]])

    def with_min_peers(exchange: Exchange, least: int) -> Exchange:
        return exchange.with_min_peers(here, network, least=least, round_index=1)

    directed = DirectedMixing(sources)
    added = with_min_peers(directed, 3)
    assert isinstance(added, DirectedMixing)
    chosen = [set(row[row >= 0].tolist()) for row in added.sources]
    # Worker 2 gets the fastest three; worker 5 is away; the slow worker 0 only where it was.
    assert chosen == [{1, 2, 3}, {0, 3, 2}, {1, 4, 3}, {4, 1, 2}, {0, 1, 2}, set()]
    assert with_min_peers(directed, 0) is directed
    kept = with_min_peers(DirectedMixing(np.full((6, 0), -1)), 3)
    assert isinstance(kept, DirectedMixing)
    assert kept.sources.shape == (6, 0), "nothing is mixed in this round"
    ring = np.array([[i, (i + 1) % 5] for i in range(5)])
    weighted = WeightedMixing(ring, np.full(5, 0.5), np.full(6, 0.5))
    assert with_min_peers(weighted, 1) is weighted
    with pytest.raises(ConfigError, match="gives worker 0 1: poisoned models"):
        with_min_peers(weighted, 2)


@pytest.mark.parametrize("algorithm", ["fedhp", "pens"])
@pytest.mark.parametrize("model", [{}, NORMED], ids=["plain", "normed"])
def test_a_resumed_run_has_the_same_bits(algorithm: str, model: dict[str, Any]) -> None:
    changes = {"exchange": {"compression": "topk", "topk_share": 0.1}, "rounds": 6, **FLIP}
    prepared = prepared_of(algorithm, SIZE, EXACT, model, changes)
    records, end = carry_out(LocalExecutor(prepared))
    assert len(end["copies"]) == len(end["copy_pairs"]) > 0
    first = LocalExecutor(prepared)
    loop = loop_of(first)
    rounds = loop.rounds()
    for _ in range(3):
        next(rounds)
    saved = checkpoint_of(loop, first)
    first.close()
    for shards in (1, 3):
        engine = LocalExecutor(prepared, shards=shards)
        resumed = loop_of(engine)
        restore(resumed, engine, saved)
        rest = list(resumed.rounds())
        state = engine.state()
        engine.close()
        assert bits(rest) == bits(records[saved.round_index :])
        assert bits(state) == bits(end)


# --- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "changes", "key", "words"),
    [
        (
            "dpsgd",
            {"exchange": {"compression": "topk", "robust": "median"}},
            "exchange.robust",
            "late part",
        ),
        ("dpsgd", {"exchange": {"radius": 1.0}}, "exchange.radius", "no effect"),
        ("pens", {"exchange": {"robust": "krum"}, **MANY}, "exchange.robust", r"algorithm\.keep"),
        (
            "pens",
            {"exchange": {"robust": "krum"}, **MANY, "algorithm": {"keep": 6, "peers": 5}},
            "exchange.robust",
            r"but algorithm\.peers is 5",
        ),
        (
            "pens",
            {
                "exchange": {"robust": "krum"},
                **MANY,
                "algorithm": {"keep": 6},
                "topology": {"name": "ring"},
            },
            "exchange.robust",
            "only 2 neighbors",
        ),
        ("dpsgd", {"workers": 1, **FLIP}, "attack.share", "nobody is left"),
        ("adpsgd", {"exchange": {"compression": "int8"}}, "exchange.compression", "in pairs"),
        ("adpsgd", {"exchange": {"robust": "clip"}}, "exchange.robust", "in pairs"),
        ("fedhp_plus", {"exchange": {"compression": "int8"}}, "exchange.compression", "sums"),
        ("fedhp_plus", {"exchange": {"robust": "median"}}, "exchange.robust", "sums"),
        ("fedhp_plus", FLIP, "attack.kind", "sums"),
        ("free_links", FLIP, "attack.kind", "in pairs"),
    ],
)
def test_impossible_combinations_are_refused(
    algorithm: str, changes: dict[str, Any], key: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        prepared_of(algorithm, changes)
    assert caught.value.key == key
    assert caught.value.allowed
    assert caught.value.fix


@pytest.mark.parametrize("algorithm", ["adpsgd", "fedhp_plus"])
def test_flipped_labels_are_possible_with_every_algorithm(algorithm: str) -> None:
    changes = {"attack": {"kind": "label_flip"}}
    records, _ = carry_out(LocalExecutor(prepared_of(algorithm, SIZE, EXACT, changes)))
    evaluation = records[-1].evaluation
    assert evaluation is not None
    assert np.isnan(evaluation.accuracy).sum() == 1


def test_a_weak_defence_is_allowed_and_noted(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('workers = 10\n[attack]\nkind = "noise"\nshare = 0.4\n')
    notes: list[str] = []
    load(file, ["exchange.robust=median"], notes=notes)
    assert notes == [
        "4 workers attack, but exchange.robust = 'median' with trim = 0.2 is set to withstand 2"
    ]
    load(file, ["exchange.robust=median", "exchange.trim=0.4"], notes=notes)
    assert len(notes) == 1
    load(file, ["exchange.robust=krum", "exchange.trim=0.4"], notes=notes)
    assert notes[1:] == [
        "exchange.robust = 'krum' with trim = 0.4 needs 11 models to withstand 4 poisoned ones, "
        "but workers = 10"
    ]
    pens = ["exchange.robust=median", "exchange.trim=0.4", "algorithm.name=pens"]
    load(file, pens, notes=notes)
    assert PENS().keep == 3
    assert notes[2:] == [
        "in its first stage PENS averages 3 peers, but exchange.robust = 'median' needs 8 to "
        "withstand 4 poisoned ones: set algorithm.keep = 8"
    ]
    load(file, [*pens, "algorithm.keep=8"], notes=notes)
    assert len(notes) == 3


def test_settings_that_are_not_used_are_not_in_the_tables() -> None:
    """So that the tables of other experiments are those of the release before."""
    plain = to_tables(parse({}))
    assert not {"exchange", "attack"} & plain.keys()
    assert not {"compression", "robust", "trim"} & plain["cluster"].keys()
    assert set(to_tables(parse({}, ["attack.kind=noise"]))["attack"]) == {"kind", "share", "scale"}
