"""How large the experiment on VAEs is under each budget."""

from typing import Any

from arcsm.experiments.experiment import Settings
from arcsm.experiments.image_parts import STAND_IN

METHODS = {
    "elbo": "ELBO",
    "stein": "Stein",
    "spectral": "Spectral",
    "ssm": "SSM",
    "ssm-ar": "SSM-AR",
    "csm": "CSM",
}
# Not in the paper: how far CSM is ahead of SSM by its estimator, and not by its encoder.
CONTROL = "ssm-as-csm"
NAMES = {**METHODS, CONTROL: "SSM with the encoder of CSM"}
# Latents of each image that the entropy is estimated from. Kernels need many; a learned field is
# taught by as many, and its scores are centred among them. ELBO, which estimates nothing, has those
# that the decoder is shown.
_PARTICLES = {"stein": 100, "spectral": 100, "ssm": 8, "ssm-ar": 8, "csm": 8}
# `decoded` of the latents are shown to the decoder.
_TRAINING = {"steps": 100_000, "batch": 128, "decoded": 1, "evaluate_every": 2000}
_SCORES = {"ssm": 1e-3, "ssm-ar": 1e-3, "csm": 1e-3}
_MNIST = {**_TRAINING, "learning_rate": 1e-3, "score_learning_rate": _SCORES}
_CELEBA = {**_TRAINING, "learning_rate": 1e-4, "score_learning_rate": _SCORES}
# Conditional scores are in units that follow the encoder: they need not hurry.
_SLOWER_SCORES = {"ssm": 1e-3, "ssm-ar": 3e-4, "csm": 3e-4}
# Where the paper's steps are not followed to the letter: scores are those of before the estimator's
# step, weights are averaged, and the learning rate falls.
_REFINED = {"scores_before": True, "average": 0.9995, "decay": 0.5}
# What likelihoods are judged by, and what images are: each is the affair of one of the sets.
OF_LIKELIHOODS = (
    "ais",
    "ais_images",
    "ais_batch",
    "simulated_images",
    "iwae_samples",
    "iwae_batch",
)
OF_SAMPLES = (
    "samples",
    "features",
    "feature_batch",
    "reference_images",
    "reference_folder",
    "kid",
)


def _controls(*latents: int) -> list[dict[str, Any]]:
    """Return what is run beside the methods on MNIST, for each of these sizes of latents."""
    return [{"data": "mnist", "latent": latent, "method": CONTROL} for latent in latents]


_COMMON: dict[str, Any] = {
    "assumed": (
        "implicit encoders (a middle and a width by two layers of x, as for ELBO, and in these"
        " units a network of noise and a further first layer of x; that of CSM: a shape of the"
        " noise by x, then an autoregressive stretch, whose network sees x by the two layers, too,"
        " and is gated by them),"
        " score networks in units of the posterior"
        " (conditional ones given earlier latents, which hold all that these say: such scores are"
        " learned as a shape for each latent and x), likelihood of CelebA (normal, one learned"
        " deviation), particles, how many of them are decoded"
    ),
    "binarisation": (
        "dynamic: each training pixel is drawn as 0 or 1 with its grey level as probability, anew"
        " in each step; test images once, by a fixed seed"
    ),
    "optimisers": (
        "RMSProp with its first steps corrected (Adam without momentum, decay 0.99) for the"
        " autoencoder, whose weights are averaged over steps where 'average' is not 0; Adam for"
        " scores; constant learning rates, but where 'decay' is not 0: a share of the steps at the"
        " end, in which that of the autoencoder falls to 0"
    ),
    "sources": {"mnist": {"name": "mnist"}, "celeba": {"name": "celeba"}},
    "tables": [
        {"data": "mnist", "latent": 8},
        {"data": "mnist", "latent": 16},
        {"data": "celeba", "latent": 32},
    ],
    "methods": list(METHODS),
    "controls": _controls(8, 16),
    "hidden": 256,
    "width": 64,
    "score_width": 256,
    # After a first one, of x. Conditional scores, in units that hold all that earlier latents say,
    # are a shape for each latent and x, to which a further layer adds nothing.
    "score_layers": {"ssm": 2, "ssm-ar": 1, "csm": 1},
    "training": {"mnist": _MNIST, "celeba": _CELEBA},
    "particles": _PARTICLES,
    "score_updates": 1,
    "head_start": 200,
    "scores_before": False,
    "average": 0.0,
    "decay": 0.0,
    "compile": False,
    "tf32": False,
    "validation_images": 500,
    "validation_draws": 50,
    "ais": {"chains": 16, "temperatures": 1000, "leapfrog": 10, "target": 0.65},
    "ais_images": 2000,
    "ais_batch": 2000,
    "simulated_images": 100,
    "iwae_samples": 1000,
    "iwae_batch": 500,
    "samples": 10_000,
    "features": {"network": "inception", "dims": 2048},
    "feature_batch": 256,
    "reference_images": 50_000,
    "reference_folder": None,  # the cache of the user
    "kid": {"subsets": 100, "subset_size": 1000, "reference": 10_000},
    "timed_steps": 500,
    "save_seconds": 30,
    "seeds": [0, 1, 2],
    "celeba_seeds": [0],
}
_SMALL: dict[str, Any] = {
    **_COMMON,
    "sources": {
        "mnist": {"name": STAND_IN, "side": 8, "channels": 1, "train": 160, "test": 24},
        "celeba": {"name": STAND_IN, "side": 16, "channels": 3, "train": 96, "test": 24},
    },
    "tables": [{"data": "mnist", "latent": 2}, {"data": "celeba", "latent": 3}],
    "controls": _controls(2),
    "hidden": 16,
    "width": 8,
    "score_width": 16,
    "training": {
        "mnist": {**_MNIST, "steps": 6, "batch": 8, "evaluate_every": 3},
        "celeba": {**_CELEBA, "steps": 2, "batch": 4, "evaluate_every": 1},
    },
    "particles": dict.fromkeys(_PARTICLES, 4),
    "head_start": 2,
    "validation_images": 16,
    "validation_draws": 4,
    "ais": {"chains": 2, "temperatures": 4, "leapfrog": 2, "target": 0.65},
    "ais_images": 8,
    "ais_batch": 8,
    "simulated_images": 8,
    "iwae_samples": 8,
    "samples": 64,
    "features": {"network": STAND_IN, "dims": 8},
    "reference_images": 80,
    "kid": {"subsets": 4, "subset_size": 20, "reference": 60},
    "timed_steps": 2,
    "save_seconds": 3600,
    "seeds": [0, 1],
    "celeba_seeds": [0, 1],
}
BUDGETS: dict[str, Settings] = {
    "smoke": _SMALL,
    "cpu": {
        **_COMMON,
        # On MNIST the steps of the paper, of half its batch and with few particles; on CelebA a
        # tenth of them, of small batches and by narrow networks. Two pieces at a time, all of them
        # take five hours.
        "controls": _controls(8),
        "width": 16,
        "training": {
            "mnist": {
                **_MNIST,
                "batch": 64,
                "score_learning_rate": _SLOWER_SCORES,
                "evaluate_every": 5000,
            },
            # The rate of MNIST: with that of _CELEBA networks would be far from trained.
            "celeba": {
                **_CELEBA,
                "steps": 10_000,
                "batch": 32,
                "learning_rate": 1e-3,
                "score_learning_rate": _SLOWER_SCORES,
                "evaluate_every": 2500,
            },
        },
        "particles": {**_PARTICLES, "stein": 32, "spectral": 32, "ssm": 4, "ssm-ar": 4, "csm": 4},
        **_REFINED,
        "ais": {"chains": 8, "temperatures": 500, "leapfrog": 10, "target": 0.65},
        "ais_images": 500,
        "ais_batch": 500,
        "simulated_images": 50,
        "iwae_batch": 250,
        # More than there are features, or distances would be far too large.
        "samples": 2500,
        "reference_images": 5000,
        "feature_batch": 50,
        "kid": {"subsets": 50, "subset_size": 500, "reference": 2500},
        "timed_steps": 20,
        "seeds": [0],
    },
    "gpu": {
        **_COMMON,
        # Steps on CelebA are an eighth of the paper's, and so are the images that are here: each is
        # seen about as often. Figures are for the order of the methods, not for the paper's values.
        "training": {
            "mnist": {
                **_MNIST,
                "decoded": 8,
                "score_learning_rate": _SLOWER_SCORES,
                "evaluate_every": 5000,
            },
            "celeba": {
                **_CELEBA,
                "steps": 12_000,
                "score_learning_rate": _SLOWER_SCORES,
                "evaluate_every": 4000,
            },
        },
        "celeba_seeds": [0, 1, 2],
        # The eigenvectors of kernels of up to 32 draws are found by a far faster routine.
        "particles": {**_PARTICLES, "spectral": 32},
        **_REFINED,
        "compile": True,
        "tf32": True,
        "ais": {**_COMMON["ais"], "compile": True, "tf32": True},
    },
    "paper": {
        **_COMMON,
        # Scores have the rate of the autoencoder, but for those of CSM.
        "training": {
            "mnist": {**_MNIST, "score_learning_rate": {**_SCORES, "csm": 2e-4}},
            "celeba": {
                **_CELEBA,
                "score_learning_rate": {"ssm": 1e-4, "ssm-ar": 1e-4, "csm": 2e-4},
            },
        },
    },
}
