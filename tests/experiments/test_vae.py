"""The experiment on VAEs: every method in small, resumed pieces, and what is made of numbers."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from arcsm.errors import InputError
from arcsm.experiments import run_experiment, vae_parts
from arcsm.experiments.experiment import Piece, Place
from arcsm.experiments.image_parts import from_png, to_png
from arcsm.experiments.vae import (
    AIS,
    EXPERIMENT,
    FID,
    PAPER,
    figures,
    metrics,
    pieces,
    run,
    verdicts,
)
from arcsm.experiments.vae_budgets import BUDGETS, CONTROL, METHODS, NAMES
from arcsm.experiments.vae_parts import (
    Pictures,
    alone_with,
    make_parts,
    state_folder,
)
from arcsm.results import Metric, read_result
from arcsm.vae import FreeEncoder, GaussianEncoder, ImplicitEncoder, VAEStack

SMOKE = BUDGETS["smoke"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep states of runs away from the user's cache."""
    monkeypatch.setattr(vae_parts, "user_cache", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def small(**changes: Any) -> dict[str, Any]:
    return {**SMOKE, "tables": [{"data": "mnist", "latent": 2}], **changes}


def piece_of(settings: Any, name: str) -> Piece:
    return next(piece for piece in pieces(settings) if piece.name == name)


def run_piece(settings: Any, name: str, *, fresh: bool = False) -> Any:
    return run(settings, piece_of(settings, name), Place("cpu", lambda share: None, fresh=fresh))


def states_in(cache: Path) -> list[Path]:
    """Return what of states is there, whole or in part, but for their locks."""
    return [path for path in cache.glob("arcsm/vae/*") if path.suffix != ".lock"]


def interrupt(*arguments: Any, **options: Any) -> Any:
    raise KeyboardInterrupt


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that the number of each step of training is added to."""
    taken: list[int] = []
    plain = VAEStack.advance

    def advance(stack: VAEStack) -> None:
        taken.append(stack.step)
        plain(stack)

    monkeypatch.setattr(VAEStack, "advance", advance)
    return taken


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_every_method_in_small(tmp_path: Path) -> None:
    paths = run_experiment(EXPERIMENT, "smoke", device="cpu", folder=tmp_path / "results").written
    record = read_result(paths[0])
    found = {
        (one["name"], one["labels"]["data"], one["labels"]["method"]): one["value"]
        for one in record["metrics"]
    }
    for method in NAMES:
        # 64 pixels of 0 or 1 cannot cost much more than a bit each before anything is learned.
        assert 0 < found[AIS, "mnist", method] < 60
        assert found["−log p, bound by IWAE", "mnist", method] > 0
        assert method == CONTROL or found[FID, "celeba", method] > 0
    assert not states_in(tmp_path / "cache")
    assert len(list((tmp_path / "results").glob("vae-smoke/*.png"))) == 8


def test_pieces_and_methods_are_those_of_the_paper() -> None:
    names = [piece.name for piece in pieces(BUDGETS["paper"])]
    assert len(names) == 7 + 7 + 6 and "mnist.8.csm" in names and "celeba.32.elbo.0" in names
    assert PAPER["mnist", 8]["csm"] == 95.02 and PAPER["celeba", 32]["spectral"] == 121.51
    assert len(EXPERIMENT.claims) == 18
    for budget in BUDGETS.values():
        assert set(budget["methods"]) == set(METHODS)
    paper = BUDGETS["paper"]
    assert paper["training"]["mnist"]["steps"] == 100_000
    rates = {data: paper["training"][data]["score_learning_rate"] for data in ("mnist", "celeba")}
    assert rates["mnist"] == {"ssm": 1e-3, "ssm-ar": 1e-3, "csm": 2e-4}
    assert rates["celeba"] == {"ssm": 1e-4, "ssm-ar": 1e-4, "csm": 2e-4}


def test_on_celeba_each_seed_has_a_piece_and_the_first_of_all_methods_come_first() -> None:
    found = [one for one in pieces(BUDGETS["gpu"]) if one.labels["data"] == "celeba"]
    assert [one.labels["seeds"] for one in found] == [[0]] * 6 + [[1]] * 6 + [[2]] * 6
    assert found[5].name == "celeba.32.csm.0" and found[17].name == "celeba.32.csm.2"
    (alone,) = (one for one in pieces(BUDGETS["gpu"]) if one.name == "mnist.16.csm")
    assert alone.labels["seeds"] == [0, 1, 2]


def test_a_piece_depends_on_nothing_that_is_said_of_another_set() -> None:
    def depends(name: str, **changes: Any) -> Any:
        return piece_of({**SMOKE, **changes}, name).depends_on

    training = SMOKE["training"]
    longer = {**training, "celeba": {**training["celeba"], "steps": 4}}
    here = {**SMOKE["sources"], "celeba": {"name": "celeba"}}
    of_celeba: list[dict[str, Any]] = [
        {"training": longer}, {"celeba_seeds": [0, 7]}, {"sources": here}, {"kid": {}},
        {"samples": 9}, {"width": 9}, {"tables": SMOKE["tables"][::-1]},
    ]  # fmt: skip
    of_none = [{"save_seconds": 9}, {"controls": [], "methods": ["csm"]}]
    for changes in (*of_celeba, *of_none):
        assert depends("mnist.2.csm", **changes) == depends("mnist.2.csm")
    for changes in of_celeba[2:-1]:
        assert depends("celeba.3.csm.0", **changes) != depends("celeba.3.csm.0")
    for changes in ({"ais_images": 9}, {"iwae_samples": 9}, *of_none):
        assert depends("celeba.3.csm.0", **changes) == depends("celeba.3.csm.0")
    assert depends("celeba.3.csm.0", training=longer) != depends("celeba.3.csm.0")
    for changes in ({"seeds": [7]}, {"hidden": 17}, {"average": 0.5}, {"ais_images": 9}):
        assert depends("mnist.2.csm", **changes) != depends("mnist.2.csm")
    assert depends("mnist.2.csm") != depends("mnist.2.ssm")
    # Nor on what is said of another method; the control takes the estimator of SSM.
    rates = {**SMOKE["training"]["mnist"]["score_learning_rate"], "csm": 1e-5}
    slower = {
        **SMOKE["training"],
        "mnist": {**SMOKE["training"]["mnist"], "score_learning_rate": rates},
    }
    for changes in (
        {"particles": {**SMOKE["particles"], "csm": 9}},
        {"score_layers": {**SMOKE["score_layers"], "csm": 9}},
        {"training": slower},
    ):
        assert depends("mnist.2.csm", **changes) != depends("mnist.2.csm")
        for other in ("elbo", "stein", "ssm", CONTROL):
            assert depends(f"mnist.2.{other}", **changes) == depends(f"mnist.2.{other}")
    more = {**SMOKE["particles"], "ssm": 9}
    assert depends(f"mnist.2.{CONTROL}", particles=more) != depends(f"mnist.2.{CONTROL}")
    assert depends("celeba.3.csm.0") != depends("celeba.3.csm.1")


def test_methods_share_their_decoder_and_have_their_encoders() -> None:
    kinds, names = {}, {}
    sizes = set()
    for method in NAMES:
        encoder, decoder, estimator = make_parts(SMOKE, method, 2, (8, 8, 1), True)
        kinds[method], names[method] = type(encoder), estimator.name
        sizes.add(tuple(tuple(p.shape) for p in decoder.parameters()))
        assert estimator.dims == 2
    assert len(sizes) == 1
    assert kinds["elbo"] is GaussianEncoder and kinds["ssm"] is FreeEncoder
    assert kinds["csm"] is kinds["ssm-ar"] is kinds[CONTROL] is ImplicitEncoder
    assert names == {**METHODS, CONTROL: "SSM"}
    encoder, decoder, _ = make_parts(SMOKE, "csm", 3, (16, 16, 3), False)
    assert decoder.shape == (3, 16, 16)


def test_images_keep_their_place() -> None:
    pictures = Pictures(SMOKE, "celeba")
    back = pictures.to_pixels(pictures.observed)
    assert np.array_equal(back, pictures.test.pixels)
    grey = Pictures(SMOKE, "mnist")
    assert set(grey.observed.unique().tolist()) <= {0.0, 1.0}
    assert torch.equal(grey.observed, Pictures(SMOKE, "mnist").observed)
    share = grey.to_pixels(grey.observed).mean() / 255
    assert share == pytest.approx(grey.test.pixels.mean() / 255, abs=0.05)
    assert len(grey.source) + SMOKE["validation_images"] == len(grey.train)
    with pytest.raises(InputError, match="more than 1000 training images"):
        Pictures({**SMOKE, "validation_images": 1000}, "mnist")


def test_an_interrupted_piece_goes_on(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(save_seconds=-1)
    whole = run_piece(settings, "mnist.2.csm")
    calls: list[int] = []
    plain: Callable[..., list[float]] = vae_parts.bounds_of

    def stop(*arguments: Any) -> list[float]:
        calls.append(1)
        if len(calls) == 4:  # of two runs, at the second point
            raise KeyboardInterrupt
        return plain(*arguments)

    monkeypatch.setattr(vae_parts, "bounds_of", stop)
    with pytest.raises(KeyboardInterrupt):
        run_piece(settings, "mnist.2.csm")
    assert len(list(cache.glob("arcsm/vae/*/vae.safetensors"))) == 1
    monkeypatch.setattr(vae_parts, "bounds_of", plain)
    again = run_piece(settings, "mnist.2.csm")
    assert again["curve"]["loss"] == whole["curve"]["loss"]
    assert again["curve"]["iwae"] == whole["curve"]["iwae"]
    assert again["runs"][1]["ais"] == whole["runs"][1]["ais"]
    assert not states_in(cache)


@pytest.mark.parametrize(
    ("table", "within"),
    [({"data": "mnist", "latent": 2}, "ais"), ({"data": "celeba", "latent": 3}, "draw_samples")],
)
def test_a_piece_interrupted_after_its_training_is_not_trained_again(
    table: dict[str, Any],
    within: str,
    cache: Path,
    steps: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = small(tables=[table])
    name = next(p.name for p in pieces(settings) if p.labels["method"] == "csm")
    whole = run_piece(settings, name)
    expected = steps.copy()
    steps.clear()
    module = "vae_parts" if within == "ais" else "vae"
    with monkeypatch.context() as patch:
        patch.setattr(f"arcsm.experiments.{module}.{within}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_piece(settings, name)
    assert steps == expected and len(list(cache.glob("arcsm/vae/*/vae.safetensors"))) == 1
    again = run_piece(settings, name)
    assert steps == expected
    assert again["runs"] == whole["runs"]
    assert again["curve"]["iwae"] == whole["curve"]["iwae"] and all(again["curve"]["iwae"])
    assert not states_in(cache)


def test_two_processes_do_not_run_one_piece_at_once(cache: Path, steps: list[int]) -> None:
    folder = state_folder(piece_of(small(), "mnist.2.elbo"), "cpu")
    # As another process does it: a file lock is that of one handle.
    script = (
        "import sys; from pathlib import Path; from types import SimpleNamespace\n"
        "from arcsm.experiments.vae_parts import alone_with\n"
        "with alone_with(Path(sys.argv[1]), SimpleNamespace(name='x')):\n"
        "    print('mine', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "mine\n"
        with pytest.raises(InputError, match=r"at work on mnist\.2\.elbo, got one"):
            run_piece(small(), "mnist.2.elbo")
        assert not steps
        other.communicate()
    assert run_piece(small(), "mnist.2.elbo")["runs"] and steps
    # One that was killed is none.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "mine\n"
        other.kill()
    assert run_piece(small(), "mnist.2.elbo")["runs"]


def test_of_pieces_side_by_side_one_that_is_refused_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(vae_parts, "user_cache", lambda: tmp_path / "cache")
    taken = next(piece for piece in pieces(SMOKE) if piece.name == "mnist.2.elbo")
    options: dict[str, Any] = {"device": "cpu", "folder": tmp_path / "results", "jobs": 2}
    with (
        alone_with(state_folder(taken, "cpu"), taken),
        pytest.raises(InputError, match=r"at work on mnist\.2\.elbo"),
    ):
        run_experiment(EXPERIMENT, "smoke", only=["mnist.2.elbo", "mnist.2.csm"], **options)
    record = read_result(tmp_path / "results" / "vae-smoke.json")
    assert {metric["labels"]["method"] for metric in record["metrics"]} == {"csm"}


def test_images_and_weights_are_asked_for_before_the_first_piece(
    steps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCSM_FID_WEIGHTS", str(tmp_path / "none"))
    told = {**SMOKE, "features": {"network": "inception", "dims": 2048}}
    experiment = replace(EXPERIMENT, budgets={"smoke": told})
    with pytest.raises(InputError, match="ARCSM_FID_WEIGHTS is the path"):
        run_experiment(experiment, "smoke", device="cpu", folder=tmp_path / "results")
    assert not steps and not (tmp_path / "results").exists()


def test_a_fresh_piece_discards_what_was_interrupted(
    cache: Path, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small()
    with monkeypatch.context() as patch:
        patch.setattr(vae_parts, "ais", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_piece(settings, "mnist.2.csm")
    expected = steps.copy()
    steps.clear()
    run_piece(settings, "mnist.2.csm", fresh=True)
    assert steps == expected and expected[0] == 0
    assert not states_in(cache)


def test_a_state_of_older_code_or_another_device_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    piece = piece_of(small(), "mnist.2.csm")
    now = state_folder(piece, "cpu")
    assert now == state_folder(piece_of(small(), "mnist.2.csm"), "cpu")
    assert now != state_folder(piece, "cuda")
    assert now != state_folder(piece_of(small(), "mnist.2.ssm"), "cpu")
    assert now != state_folder(piece_of(small(hidden=17), "mnist.2.csm"), "cpu")
    monkeypatch.setattr(vae_parts, "_STATE_VERSION", vae_parts._STATE_VERSION + 1)
    assert now != state_folder(piece, "cpu")


def test_a_piece_tells_of_each_seed_and_shows_pictures() -> None:
    settings, told = small(seeds=[5, 6]), list[str]()
    place = Place("cpu", lambda share: None, told.append, jobs=3)
    raw = run(settings, piece_of(settings, "mnist.2.elbo"), place)
    assert raw["side_by_side"] == 3
    # The bounds are told while it runs, as means over the seeds.
    values = [sum(raw["curve"][key][1]) / 2 for key in ("elbo", "iwae")]
    assert len(told) == 2 and told[1] == "ELBO {:.2f}, IWAE {:.2f}".format(*values)
    assert [one["seed"] for one in raw["runs"]] == [5, 6] and raw["captured"] is False
    assert raw["runs"][0]["ais"] != raw["runs"][1]["ais"]
    assert raw["curve"]["step"] == [3, 6] and len(raw["curve"]["iwae"][1]) == 2
    pictures = raw["runs"][0]["pictures"]
    grids = {kind: from_png(pictures[kind]).shape for kind in pictures}
    assert set(grids) == {"samples", "reconstructions", "traversal"}
    # Eight columns; reconstructions below their originals; a row for each of two latents.
    assert grids["samples"][0] == grids["samples"][1]
    assert grids["reconstructions"][1] == grids["samples"][1]
    assert grids["traversal"][0] < grids["traversal"][1] / 4


def fake(
    settings: Any, table: dict[str, Any], ais: dict[str, list[float]], images: int = 2000
) -> dict[str, Any]:
    name = f"{table['data']}.{table['latent']}"
    raw: dict[str, Any] = {}
    for method, values in ais.items():
        runs = [
            {"ais": value, "iwae": value, "elbo": value, "gap": 0.1, "acceptance": 0.6,
             "stuck": 0, "ais_images": images, "iwae_images": images}
            for value in values
        ]  # fmt: skip
        raw[f"{name}.{method}"] = {"runs": runs, "curve": {"seconds": [1.0]}, "side_by_side": 1}
    return raw


def test_numbers_become_the_table_and_its_verdicts() -> None:
    table = {"data": "mnist", "latent": 8}
    settings = {**BUDGETS["paper"], "tables": [table], "seeds": [0, 1]}
    values = {method: [97.0, 97.2] for method in METHODS}
    values["csm"], values["ssm"] = [95.0, 95.02], [94.9, 95.1]
    found = list(metrics(settings, fake(settings, table, values)))

    def of(name: str, method: str) -> Metric:
        return next(m for m in found if m.name == name and m.labels["method"] == method)

    assert of(AIS, "csm").value == pytest.approx(95.01) and of(AIS, "csm").n == 2
    assert of("gap to ELBO", "csm").value == pytest.approx(-2.09)
    said = {verdict.text: verdict.holds for verdict in verdicts(settings, found)}
    by_paper, best, _, gaps = said
    assert said[by_paper] is True
    assert by_paper.endswith(
        "95.01 nats on the first 2,000 test images after 100,000 steps, the paper 95.02 (ELBO"
        " 97.10, the paper's 96.74)."
    )
    few = verdicts(settings, metrics(settings, fake(settings, table, values, images=500)))[0]
    assert few.holds is None and "; these are too few to stand beside it" in few.text
    assert said[best] is True and best.startswith("MNIST, 8 latents: SSM is best")
    assert said[gaps] is None and "CSM -2.09 (-1.72)" in gaps and "SSM -2.10 (-1.13)" in gaps
    values["csm"] = [96.0, 96.1]
    worse = verdicts(settings, metrics(settings, fake(settings, table, values)))
    assert [one.holds for one in worse[:2]] == [False, False]
    # One seed decides nothing, nor does a short run beside what the paper has.
    alone = {method: of[:1] for method, of in values.items()}
    one = {**settings, "seeds": [0]}
    first, second = verdicts(one, metrics(one, fake(one, table, alone)))[:2]
    assert first.holds is second.holds is None and first.text.endswith("of one seed.")
    assert second.text.endswith("behind it, of one seed.")
    # Nor do some of the seeds, whose error is known of none or of some.
    some = {method: of[: 1 + (method == "csm")] for method, of in values.items()}
    best = verdicts(settings, metrics(settings, fake(settings, table, some)))[1]
    assert best.holds is None and "standard error" not in best.text
    assert best.text.endswith("CSM is 1.15 behind it; of 2 seeds there are 1 to 2 so far.")
    three = {**settings, "seeds": [0, 1, 2]}
    best = verdicts(three, metrics(three, fake(three, table, values)))[1]
    assert best.holds is None and "with a standard error of" in best.text
    assert best.text.endswith("; of 3 seeds there are 2 so far.")
    short = {**settings, "training": BUDGETS["smoke"]["training"]}
    first, second = verdicts(short, metrics(short, fake(short, table, values)))[:2]
    assert first.holds is None and second.holds is False
    assert "after 6 steps" in first.text


def test_the_control_is_told_beside_the_methods_and_is_none_of_them() -> None:
    table = {"data": "mnist", "latent": 8}
    settings = {**BUDGETS["paper"], "tables": [table], "seeds": [0, 1]}
    values = {method: [97.0, 97.2] for method in METHODS} | {CONTROL: [94.0, 94.2]}
    values["csm"] = [95.0, 95.02]
    found = metrics(settings, fake(settings, table, values))
    said = verdicts(settings, found)
    assert said[1].holds is True and "CSM is best (ELBO 97.10," in said[1].text
    assert not any("control" in one.text or "94.10" in one.text for one in said[:-1])
    assert said[-1].holds is None and said[-1].text == (
        "MNIST, 8 latents: SSM with the encoder of CSM has 94.10 nats, CSM 95.01, SSM with its own"
        " 97.10."
    )
    del values["ssm"]
    said = verdicts(settings, metrics(settings, fake(settings, table, values)))
    assert said[-1].text.endswith("has 94.10 nats, CSM 95.01.")


def test_methods_that_are_not_there_yet_are_named_and_decide_nothing() -> None:
    table = {"data": "mnist", "latent": 8}
    settings = {**BUDGETS["paper"], "tables": [table, {"data": "celeba", "latent": 32}]}
    values = {"elbo": [97.0, 97.2], "csm": [95.0, 95.02]}
    found = metrics(settings, fake(settings, table, values))
    assert {one.labels["method"] for one in found} == set(values)
    by_paper, best, gaps = verdicts(settings, found)
    assert by_paper.holds is True and best.holds is None
    assert best.text.startswith("MNIST, 8 latents: CSM is best (ELBO 97.10, CSM 95.01 nats);")
    assert best.text.endswith("not run yet: Stein, Spectral, SSM, SSM-AR.")
    assert gaps.text.endswith("the paper's: CSM -2.09 (-1.72).")
    alone = verdicts(settings, metrics(settings, fake(settings, table, {"csm": [95.0, 95.02]})))
    assert len(alone) == 2
    # Of CSM alone there is nothing to say while it is not there.
    without = fake(settings, table, {"elbo": [97.0], "ssm": [96.0]})
    assert verdicts(settings, metrics(settings, without)) == []


def test_runs_of_several_pieces_are_one_row() -> None:
    table = {"data": "celeba", "latent": 32}
    settings = {**BUDGETS["gpu"], "tables": [table]}
    raw: dict[str, Any] = {}
    for piece in pieces(settings):
        (seed,), method = piece.labels["seeds"], piece.labels["method"]
        fid = 60.0 + seed - 10 * (method == "csm")
        runs = [{"fid": fid, "kid": 0.1, "images": 21_500, "note": ""}]
        curve = {"seconds": [30.0 + seed], "step": [1, 2], "iwae": [[], [-fid]]}
        raw[piece.name] = {"runs": runs, "curve": curve, "side_by_side": 6}
    found = list(metrics(settings, raw))
    (own,) = (m for m in found if m.name == FID and m.labels["method"] == "csm")
    assert (own.value, own.spread, own.n) == (51.0, 1.0, 3)
    (seconds,) = (m for m in found if m.unit == "s" and m.labels["method"] == "csm")
    assert (seconds.value, seconds.n, seconds.labels["seeds side by side"]) == (31.0, 3, 1)
    best = next(v for v in verdicts(settings, found) if " is best " in v.text)
    assert best.holds is True
    assert "CSM is best by the FID of 10,000 samples after 12,000 steps (ELBO 61.00" in best.text
    # Of one seed of some methods, and three of CSM, nothing is decided.
    some = {name: one for name, one in raw.items() if name.endswith((".0", "csm.1", "csm.2"))}
    found = list(metrics(settings, some))
    assert {m.labels["method"]: m.n for m in found if m.name == FID}["elbo"] == 1
    best = next(v for v in verdicts(settings, found) if " is best " in v.text)
    assert best.holds is None
    # Whichever pieces are there, methods keep their order; and the busiest time is told.
    late = {name: raw[name] for name in ("celeba.32.csm.0", "celeba.32.elbo.1")}
    late["celeba.32.csm.1"] = {**raw["celeba.32.csm.1"], "side_by_side": 9}
    found = list(metrics(settings, late))
    assert [m.labels["method"] for m in found if m.name == FID] == ["elbo", "csm"]
    assert [m.labels["pieces side by side"] for m in found if m.unit == "s"] == [6, 9]


def test_bounds_of_several_pieces_are_one_line() -> None:
    settings = {**SMOKE, "tables": [{"data": "celeba", "latent": 3}], "methods": ["elbo"]}
    pictures = dict.fromkeys(
        ("samples", "reconstructions", "traversal"), to_png(np.zeros((4, 4, 3), np.uint8))
    )
    raw = {
        f"celeba.3.elbo.{seed}": {
            "runs": [{"pictures": pictures}],
            "curve": {"step": [1, 2], "iwae": [[-10.0 - 2 * seed], [-4.0 - 2 * seed]]},
        }
        for seed in (0, 1)
    }
    (axes,) = figures(settings, raw)["bounds-celeba-3"].axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [[11.0, 5.0]]
    # The first steps, whose bounds are far from the last ones, are left out; so are controls.
    for one in raw.values():
        one["curve"]["step"] = [1, 20]
    (axes,) = figures(settings, raw)["bounds-celeba-3"].axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [[5.0]]
    assert figures(small(), {"mnist.2.ssm-as-csm": raw["celeba.3.elbo.0"]}) == {}


def test_seconds_of_a_shared_machine_say_so() -> None:
    table = {"data": "mnist", "latent": 8}
    settings = {**BUDGETS["paper"], "tables": [table]}
    raw = fake(settings, table, {method: [97.0] for method in METHODS})
    raw["mnist.8.csm"]["side_by_side"] = 12
    shared = [one for one in metrics(settings, raw) if one.labels.get("pieces side by side") == 12]
    (one,) = shared
    assert one.name.startswith("seconds of training") and one.labels["method"] == "csm"


def test_claims_find_their_metrics() -> None:
    claim = next(c for c in EXPERIMENT.claims if dict(c.labels or {})["data"] == "celeba")
    assert claim.metric == FID and claim.value == 66.31
    assert all(c.metric in (AIS, FID) for c in EXPERIMENT.claims)


def test_figures_have_a_panel_for_each_method() -> None:
    settings = small(methods=["elbo", "csm"], controls=[])
    raw = {f"mnist.2.{m}": run_piece(settings, f"mnist.2.{m}") for m in ("elbo", "csm")}
    drawn = figures(settings, raw)
    assert set(drawn) == {
        "bounds-mnist-2", "samples-mnist-2", "reconstructions-mnist-2", "traversal-mnist-2"
    }  # fmt: skip
    assert [ax.get_title(loc="left") for ax in drawn["samples-mnist-2"].axes] == ["ELBO", "CSM"]
    some = figures({**settings, "methods": ["elbo", "ssm", "csm"]}, raw)
    assert [ax.get_title(loc="left") for ax in some["samples-mnist-2"].axes] == ["ELBO", "CSM"]
    assert figures(settings, {}) == {}


def test_the_title_of_a_walk_says_along_which_latents() -> None:
    def title(data: str, latent: int) -> str:
        settings = {**small(methods=["elbo"]), "tables": [{"data": data, "latent": latent}]}
        pictures = dict.fromkeys(
            ("samples", "reconstructions", "traversal"), to_png(np.zeros((4, 4, 1), np.uint8))
        )
        curve = {"step": [1], "iwae": [[-1.0]]}
        raw = {pieces(settings)[0].name: {"runs": [{"pictures": pictures}], "curve": curve}}
        drawn = figures(settings, raw)[f"traversal-{data}-{latent}"]
        return next(text.get_text() for text in drawn.texts)

    assert "rows along each latent," in title("mnist", 8)
    assert "rows along each of the first 8," in title("mnist", 16)
    assert "rows along each of the first 4," in title("celeba", 32)


def test_what_there_is_of_a_chosen_method_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    experiment = replace(EXPERIMENT, budgets={"smoke": small(methods=["elbo", "csm"], controls=[])})
    options: dict[str, Any] = {"device": "cpu", "folder": tmp_path}
    assert run_experiment(experiment, "smoke", only=["mnist.2.csm"], **options).left
    folder = tmp_path / "vae-smoke"
    names = {path.stem for path in folder.glob("*.png")}
    assert names == {f"{k}-mnist-2" for k in ("bounds", "samples", "reconstructions", "traversal")}
    record = read_result(tmp_path / "vae-smoke.json")
    assert record["settings"]["left"] == ["mnist.2.elbo"]
    assert {one["labels"]["method"] for one in record["metrics"]} == {"csm"}
    assert not run_experiment(experiment, "smoke", **options).left
    assert "left" not in read_result(tmp_path / "vae-smoke.json")["settings"]
