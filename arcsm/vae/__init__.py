"""Variational autoencoders with implicit encoders: six ways to the entropy gradient, and AIS.

Encoder, decoder and score estimator are separate modules; the estimators serve any sampler.
"""

from arcsm.vae.annealing import AISEstimate, AISSettings, Normal, ais, reverse_ais
from arcsm.vae.data import BinaryImages, ImageSource, ScaledImages
from arcsm.vae.decoders import BernoulliDecoder, ConvolutionalDecoder, Decoder, binarise, log_prior
from arcsm.vae.encoders import (
    ConvolutionalBody,
    Encoder,
    FreeEncoder,
    GaussianEncoder,
    ImplicitEncoder,
    check_noise,
)
from arcsm.vae.estimators import (
    ESTIMATORS,
    CSMEntropy,
    ELBOEntropy,
    EntropyEstimator,
    SpectralEntropy,
    SSMAREntropy,
    SSMEntropy,
    SteinEntropy,
    make_estimator,
)
from arcsm.vae.importance import ImportanceEstimate, importance_bounds, normal_proposal
from arcsm.vae.settings import Curve, VAESettings
from arcsm.vae.training import VAEStack

__all__ = [
    "ESTIMATORS",
    "AISEstimate",
    "AISSettings",
    "BernoulliDecoder",
    "BinaryImages",
    "CSMEntropy",
    "ConvolutionalBody",
    "ConvolutionalDecoder",
    "Curve",
    "Decoder",
    "ELBOEntropy",
    "Encoder",
    "EntropyEstimator",
    "FreeEncoder",
    "GaussianEncoder",
    "ImageSource",
    "ImplicitEncoder",
    "ImportanceEstimate",
    "Normal",
    "SSMAREntropy",
    "SSMEntropy",
    "ScaledImages",
    "SpectralEntropy",
    "SteinEntropy",
    "VAESettings",
    "VAEStack",
    "ais",
    "binarise",
    "check_noise",
    "importance_bounds",
    "log_prior",
    "make_estimator",
    "normal_proposal",
    "reverse_ais",
]
