"""Heads of Gaussians that tanh squashes into the bounds, with deviations that depend on the state."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from multigrid_rl.models.distributions import HALF_LOG_2PI, Array, normal_numbers
from multigrid_rl.models.heads import Head
from multigrid_rl.types import UniformSource

#: Largest action, of 1, whose inverse of tanh is counted: beyond it float32 has no digits left.
_INSIDE = 1 - 1e-6
#: Of Gauss-Hermite quadrature over a draw.
_NODES, _WEIGHTS = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(9))
#: Of the trapezoidal rule, for a function with a bend, sharp for the largest deviations. On the CPU: this module may
#: be imported under torch's meta device, to read a player's shapes.
_STEPS = torch.linspace(-4.5, 4.5, 31, device="cpu")
_SHARES = torch.softmax(-0.5 * _STEPS.square(), 0)


class TanhGaussian(Head):
    """A diagonal Gaussian squashed into the bounds by tanh, whose deviations depend on the state.

    Haarnoja et al. 2018 (https://arxiv.org/abs/1801.01290, appendix C). Outputs are ``A`` means, then ``A`` numbers
    ``s`` that become logarithms of standard deviations between -5 and 2: -1.5 + 3.5 tanh(s), as in CleanRL.
    """

    def __init__(self, low: Array, high: Array, *_: object) -> None:
        super().__init__(low, high, 2 * len(low))

    def reparameterised(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return scaled actions (B, A), differentiable by ``outputs``, and their log-densities (B, 1).

        Args:
            outputs: (B, 2 A).
            noise: (B, A) standard normal.
        """
        mean, log_std = outputs[:, : self.width], self._log_std(outputs[:, self.width :])
        raw = mean + log_std.exp() * noise
        return torch.tanh(raw), self._density(raw, noise, log_std)

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return log-densities (B, 1) of ``actions`` (B, A), in units in which the bounds are -1 and 1."""
        mean, log_std = outputs[:, : self.width], self._log_std(outputs[:, self.width :])
        raw = torch.atanh(self.scaled(actions).clamp(-_INSIDE, _INSIDE))
        return self._density(raw, (raw - mean) * torch.exp(-log_std), log_std)

    def entropy(self, outputs: Tensor) -> Tensor:
        """Return the entropies (B, 1): the Gaussian's, and the mean logarithm of tanh's slope, right to .01."""
        mean, log_std = outputs[:, : self.width], self._log_std(outputs[:, self.width :])
        slopes = _slope(mean[..., None] + log_std.exp()[..., None] * _STEPS.to(mean)) @ _SHARES.to(mean)
        return (log_std + 0.5 + HALF_LOG_2PI + slopes).sum(1, keepdim=True)

    def noisy_log_prob(self, outputs: Tensor, actions: Tensor, noise: float) -> Tensor:
        """Return log-densities (B,) of scaled actions (B, A), each the sum of a draw and of normal noise.

        Args:
            outputs: (B, 2 A).
            actions: (B, A), beyond -1 and 1, too.
            noise: standard deviation of the noise.
        """
        mean, log_std = outputs[:, : self.width], self._log_std(outputs[:, self.width :])
        draws = torch.tanh(mean[..., None] + log_std.exp()[..., None] * _NODES.to(mean))  # (B, A, 9)
        log_densities = -0.5 * ((actions[..., None] - draws) / noise).square() - math.log(noise) - HALF_LOG_2PI
        return torch.logsumexp(log_densities + (_WEIGHTS / _WEIGHTS.sum()).log().to(mean), 2).sum(1)

    def _log_std(self, numbers: Tensor) -> Tensor:
        return -1.5 + 3.5 * torch.tanh(numbers)

    @staticmethod
    def _density(raw: Tensor, normal: Tensor, log_std: Tensor) -> Tensor:
        return (-0.5 * normal.pow(2) - log_std - HALF_LOG_2PI - _slope(raw)).sum(1, keepdim=True)

    def _sample(self, outputs: Tensor, rng: UniformSource) -> Tensor:
        return self.reparameterised(outputs, torch.from_numpy(normal_numbers(rng, self.width)))[0]

    def _mode(self, outputs: Tensor) -> Tensor:
        """Return the actions of the means: where the density is highest, unless deviations are large."""
        return torch.tanh(outputs[:, : self.width])


class ClampedTanhGaussian(TanhGaussian):
    """The same with logarithms of standard deviations clamped to -20 and 2, as in Stable-Baselines3."""

    def _log_std(self, numbers: Tensor) -> Tensor:
        return numbers.clamp(-20, 2)


def _slope(raw: Tensor) -> Tensor:
    """Return log(1 - tanh(raw)^2), as 2 (log 2 - x - softplus(-2 x)): exact where tanh is 1 in float32."""
    return 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
