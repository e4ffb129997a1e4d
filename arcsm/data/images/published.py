"""The published files of the image sets: lengths, SHA-256 digests and addresses.

CelebA is not among them: it is given out on a page that no program can read.
"""

from arcsm.data.images.download import Remote

# The files of MNIST's own page, which answers no more, are kept at the first address.
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_FASHION = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)
_CIFAR = ("https://www.cs.toronto.edu/~kriz/",)
_SVHN = ("http://ufldl.stanford.edu/housenumbers/",)


def _remote(file: str, size: int, sha256: str, bases: tuple[str, ...]) -> Remote:
    return Remote(file, size, sha256, tuple(base + file for base in bases))


PUBLISHED: dict[tuple[str, str], tuple[Remote, ...]] = {
    ("mnist", "train"): (
        _remote(
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            _MNIST,
        ),
        _remote(
            "train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            _MNIST,
        ),
    ),
    ("mnist", "test"): (
        _remote(
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            _MNIST,
        ),
        _remote(
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            _MNIST,
        ),
    ),
    ("fashion-mnist", "train"): (
        _remote(
            "train-images-idx3-ubyte.gz",
            26_421_880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            _FASHION,
        ),
        _remote(
            "train-labels-idx1-ubyte.gz",
            29_515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            _FASHION,
        ),
    ),
    ("fashion-mnist", "test"): (
        _remote(
            "t10k-images-idx3-ubyte.gz",
            4_422_102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            _FASHION,
        ),
        _remote(
            "t10k-labels-idx1-ubyte.gz",
            5_148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            _FASHION,
        ),
    ),
    **dict.fromkeys(
        (("cifar10", "train"), ("cifar10", "test")),
        (
            _remote(
                "cifar-10-python.tar.gz",
                170_498_071,
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                _CIFAR,
            ),
        ),
    ),
    ("svhn", "train"): (
        _remote(
            "train_32x32.mat",
            182_040_794,
            "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            _SVHN,
        ),
    ),
    ("svhn", "test"): (
        _remote(
            "test_32x32.mat",
            64_275_384,
            "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            _SVHN,
        ),
    ),
}
SIDES = {"mnist": 28, "fashion-mnist": 28, "cifar10": 32, "svhn": 32, "celeba": 64}
"""The height and width of the images of each set."""

COUNTS = {
    ("mnist", "train"): 60_000,
    ("mnist", "test"): 10_000,
    ("fashion-mnist", "train"): 60_000,
    ("fashion-mnist", "test"): 10_000,
    ("cifar10", "train"): 50_000,
    ("cifar10", "test"): 10_000,
    ("svhn", "train"): 73_257,
    ("svhn", "test"): 26_032,
    ("celeba", "train"): 162_770,
    ("celeba", "test"): 19_962,
}
"""The number of images in each part of each set."""
