"""Training in stages: each at its own noise level, from where the one before it ended."""

import pytest
import torch
from training_runs import FINISHED, build, contents, draw, quick, same_bits, weights_of

from arcsm.conditional import Noise
from arcsm.errors import CheckpointError, InputError
from arcsm.model import ARCSM
from arcsm.train import fit_staged, load_staged

LADDER = Noise(1.0, 0.01, levels=3)


def test_each_stage_has_its_level_and_starts_from_the_one_before(monkeypatch):
    original, levels, starts = ARCSM.loss_terms, {}, {}

    def loss_terms(self, x, noise, **options):
        if self.training:
            levels.setdefault(id(self), set()).update(noise.sigma.unique().tolist())
            starts.setdefault(id(self), weights_of(self))
        return original(self, x, noise, **options)

    monkeypatch.setattr(ARCSM, "loss_terms", loss_terms)
    model, untouched = build("ARCSM", noise=LADDER), build("ARCSM", noise=LADDER)
    staged = fit_staged(model, draw(60), quick(steps=4))
    assert same_bits(model, untouched)
    assert list(levels.values()) == [{torch.tensor(sigma).item()} for sigma in LADDER.ladder()]
    for start, before in zip(starts.values(), [model, *staged.stages[:-1]], strict=True):
        for name, value in before.named_parameters():
            assert torch.equal(start[name], value)


def test_interrupted_stages_go_on_to_the_same_bits(tmp_path):
    def interrupt(stage: int, state) -> None:
        if (stage, state.step) == (2, 15):
            raise KeyboardInterrupt

    config = quick()
    whole = fit_staged(build("ARCSM", noise=LADDER), draw(60), config)
    with pytest.raises(KeyboardInterrupt):
        fit_staged(
            build("ARCSM", noise=LADDER), draw(60), config, directory=tmp_path, progress=interrupt
        )
    with pytest.raises(CheckpointError, match=r"expected a model's config\.json in .*stage-02"):
        load_staged(tmp_path)
    told = []
    resumed = fit_staged(
        build("ARCSM", noise=LADDER),
        draw(60),
        config,
        directory=tmp_path,
        resume=True,
        progress=lambda stage, state: told.append((stage, state.step)),
    )
    assert told == [(2, 15), (2, 20), (3, 5), (3, 10), (3, 15), (3, 20)]
    for other in (resumed, load_staged(tmp_path)):
        assert all(same_bits(a, b) for a, b in zip(whole.stages, other.stages, strict=True))
    assert [list(contents(stage)) for stage in sorted(tmp_path.iterdir())] == [FINISHED] * 3


def test_stages_need_levels_and_a_directory_with_all_of_them(tmp_path):
    with pytest.raises(InputError, match="expected noise with a number of levels, got continuous"):
        fit_staged(build("ARCSM"), draw(60), quick(), directory=tmp_path)
    assert contents(tmp_path) == {}
    with pytest.raises(InputError, match=r"expected one stage for each level .*, got 0 stages"):
        load_staged(tmp_path)


def test_stages_share_the_units_of_decorrelated_columns():
    """Samples of all stages follow the columns that determine others."""
    first = torch.randn(400, 1)
    x = torch.cat([10 * first, -first + 0.02 * torch.randn(400, 1)], 1)
    staged = fit_staged(build("ARCSM", noise=LADDER, decorrelate=True), x, quick(steps=4))
    for stage in staged.stages:
        assert torch.equal(stage.regression, staged.last.regression)
    rows = staged.sample(200, generator=torch.Generator().manual_seed(0), langevin_steps=5)
    # Whatever the networks say, they say it of residuals some 0.02 wide.
    assert rows[:, 0].std().item() > 2
    assert (rows[:, 1] + rows[:, 0] / 10).std().item() < 0.2
    assert torch.equal(staged.log_prob(x[:5]), staged.last.log_prob(x[:5], method="quadrature"))
