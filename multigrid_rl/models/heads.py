"""Policy heads for bounded continuous actions, besides the Gaussian: distributions that are part of the network.

Inside, actions are scaled so that the bounds are -1 and 1; outside they are in the environment's units. Every head is
a distribution (:class:`~multigrid_rl.models.distributions.Distribution`), and its weights are weights of the network.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from multigrid_rl.models.distributions import HALF_LOG_2PI, Array, Draw, censored, normal_numbers, sample
from multigrid_rl.models.mlp import normal, orthogonal
from multigrid_rl.types import UniformSource

#: Smallest standard deviation of a mixture's component, as a share of half the range. It bounds the density where an
#: expert always acts the same.
LEAST_STD = 0.01


class Head(nn.Module):
    """A distribution over ``A`` bounded numbers, which may have weights.

    Args:
        low, high: bounds (A,) of the environment's actions, finite.
        outputs: size of the network's output that it reads.

    Classes of ``tables.HEADS`` are called with low, high, the ``size`` of ``model.head_size``, the number of features
    before the outputs and the source of their initial weights.
    """

    components = 1
    dtype = np.float32
    #: Whether actions have a log-probability.
    density = True

    def __init__(self, low: Array, high: Array, outputs: int) -> None:
        super().__init__()
        self.low, self.high = np.asarray(low, np.float32), np.asarray(high, np.float32)
        self.width, self.outputs = len(self.low), outputs
        self.register_buffer("middle", torch.from_numpy((self.low + self.high) / 2), persistent=False)
        self.register_buffer("reach", torch.from_numpy((self.high - self.low) / 2), persistent=False)
        self.middle: Tensor
        self.reach: Tensor

    def draw(self, outputs: NDArray[np.float32], rng: UniformSource) -> Draw:
        """Draw one action for each row of ``outputs`` (N, outputs) from the row's stream; NaN: no probability."""
        with torch.no_grad():
            tensor = torch.from_numpy(outputs)
            actions = self._sample(tensor, rng) * self.reach + self.middle
            if self.density:
                logp, entropy = self.log_prob(tensor, actions), self.entropy(tensor)
            else:
                logp = entropy = tensor.new_full((len(tensor), 1), math.nan)
            return Draw(actions.numpy(), logp.numpy(), entropy.numpy())

    def mode(self, outputs: NDArray[np.float32]) -> Array:
        """Return the likeliest action (N, A) of each row, or a substitute."""
        with torch.no_grad():
            best: Array = self.likeliest(torch.from_numpy(outputs)).numpy()
        return best

    def likeliest(self, outputs: Tensor) -> Tensor:
        """Return the same as a tensor (N, A), of outputs (N, outputs)."""
        return self._mode(outputs) * self.reach + self.middle

    def bounded(self, actions: Array) -> Array:
        """Return ``actions`` (N, A) clipped to the bounds."""
        return np.clip(actions, self.low, self.high)

    def scaled(self, actions: Tensor) -> Tensor:
        """Return ``actions`` (B, A) in units in which the bounds are -1 and 1."""
        return (actions - self.middle) / self.reach

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return log-probabilities (B, 1) of ``actions`` (B, A). Raises ``NotImplementedError`` by default."""
        raise NotImplementedError(f"{type(self).__name__.lower()}: actions have no log-probability")

    def entropy(self, outputs: Tensor) -> Tensor:
        """Return entropies (B, 1) in nats. Raises as :meth:`log_prob`."""
        raise NotImplementedError(f"{type(self).__name__.lower()}: actions have no log-probability")

    def cloning_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return the imitation loss (B,) of each row: the negative log-probability of ``actions`` (B, A)."""
        return -self.log_prob(outputs, actions).squeeze(1)

    def uncensored_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return the same (B,) as if no action had been clipped (``train.cloning.censored=false``)."""
        return -self.log_prob(outputs, actions).squeeze(1) if self.density else self.cloning_loss(outputs, actions)

    def _sample(self, outputs: Tensor, rng: UniformSource) -> Tensor:
        """Return scaled actions (N, A)."""
        raise NotImplementedError

    def _mode(self, outputs: Tensor) -> Tensor:
        raise NotImplementedError


class Deterministic(Head):
    """A point estimate, fitted by mean squared error. Where an expert acts in two ways, it lies between them."""

    density = False

    def __init__(self, low: Array, high: Array, *_: object) -> None:
        super().__init__(low, high, len(low))

    def cloning_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return mean squared errors (B,), scaled; an output beyond a bound at which the action lies has no error."""
        # As censored() of the Gaussian: the bounds clip such an output to the same action.
        low, high = (torch.from_numpy(bound).to(actions.device) for bound in (self.low, self.high))
        error = outputs - self.scaled(actions)
        error = torch.where(actions >= high, error.clamp(max=0), error)
        return torch.where(actions <= low, error.clamp(min=0), error).pow(2).mean(1)

    def uncensored_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return mean squared errors (B,), scaled."""
        return (outputs - self.scaled(actions)).pow(2).mean(1)

    def _sample(self, outputs: Tensor, rng: UniformSource) -> Tensor:  # noqa: ARG002
        return outputs

    def _mode(self, outputs: Tensor) -> Tensor:
        return outputs


class Mixture(Head):
    """``K`` diagonal Gaussians (Bishop 1994, https://publications.aston.ac.uk/id/eprint/373/; as in robomimic, 2021).

    Outputs are ``K`` logits of the weights, then ``K A`` means. ``size``: components ``K``.
    """

    def __init__(self, low: Array, high: Array, size: int, *_: object) -> None:
        super().__init__(low, high, size * (1 + len(low)))
        self.size = size
        # The same in every state: as outputs, standard deviations would grow where the fit is poor, and learning would
        # stop there (Seitzer et al. 2022, https://arxiv.org/abs/2203.09168).
        self.log_std = nn.Parameter(torch.full((size, len(low)), -1.0))
        # Components that start with equal means would stay equal.
        places = torch.linspace(-0.5, 0.5, size) if size > 1 else torch.zeros(1)
        self.register_buffer("places", places[:, None], persistent=False)
        self.places: Tensor

    def _parts(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log weights (B, K), means and log standard deviations (B, K, A), scaled."""
        weights, flat_means = outputs[:, : self.size], outputs[:, self.size :]
        means = flat_means.reshape(-1, self.size, self.width) + self.places
        log_std = self.log_std.clamp(min=math.log(LEAST_STD)).expand_as(means)
        return torch.log_softmax(weights, 1), means, log_std

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return log-densities (B, 1) of ``actions`` (B, A): a log-sum over components."""
        weights, means, log_std = self._parts(outputs)
        normal = (self.scaled(actions).unsqueeze(1) - means) * torch.exp(-log_std)
        logp = (-0.5 * normal.pow(2) - log_std - HALF_LOG_2PI - self.reach.log()).sum(2)
        return torch.logsumexp(weights + logp, 1, keepdim=True)

    def cloning_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return the negative log-likelihood (B,) of ``actions`` (B, A), which bounds may have clipped."""
        weights, means, log_std = self._parts(outputs)
        low, high = (torch.from_numpy(bound).to(actions.device) for bound in (self.low, self.high))
        means, log_std = means * self.reach + self.middle, log_std + self.reach.log()
        return -torch.logsumexp(weights + censored(means, log_std, actions.unsqueeze(1), low, high).sum(2), 1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """Return upper bounds (B, 1) of the entropies: exact where components lie far apart."""
        # A mixture's entropy has no closed form; its bound is of Huber et al. 2008,
        # https://doi.org/10.1109/MFI.2008.4648062
        weights, _, log_std = self._parts(outputs)
        entropy = (log_std + 0.5 + HALF_LOG_2PI + self.reach.log()).sum(2)
        return (weights.exp() * (entropy - weights)).sum(1, keepdim=True)

    def _sample(self, outputs: Tensor, rng: UniformSource) -> Tensor:
        # First a component by its weight, then a draw from it: the density is log sum_k exp(log w_k + log N_k).
        weights, means, log_std = self._parts(outputs)
        index = torch.from_numpy(sample(weights.numpy(), rng.uniform(1)).actions).long()
        rows = torch.arange(len(outputs))
        return means[rows, index] + log_std[rows, index].exp() * torch.from_numpy(normal_numbers(rng, self.width))

    def _mode(self, outputs: Tensor) -> Tensor:
        weights, means, log_std = self._parts(outputs)
        highest = (weights - log_std.sum(2)).argmax(1)  # of the components' peaks
        return means.gather(1, highest[:, None, None].expand(-1, 1, self.width)).squeeze(1)


class Bins(Head):
    """Each number is one of ``B`` equally spaced values, bounds included, given the numbers before it.

    For number ``d`` a hidden layer adds up the outputs, a bias for ``d`` and one row for each earlier number's value.

    Args:
        size: values ``B``.
        features: outputs ``H`` of the network.
    """

    def __init__(self, low: Array, high: Array, size: int, features: int, generator: torch.Generator) -> None:
        super().__init__(low, high, features)
        self.size = size
        # Autoregressive (Metz et al. 2017, https://arxiv.org/abs/1705.05035): size^A actions would be too many for one
        # softmax, and numbers drawn independently could mix two of an expert's habits.
        self.table = nn.Parameter(normal(torch.empty(self.width, size, features), generator, features**-0.5))
        self.place = nn.Parameter(normal(torch.empty(self.width, features), generator))
        self.weight = nn.Parameter(torch.zeros(self.width, features, size))
        self.bias = nn.Parameter(torch.zeros(self.width, size))

    def _logits(self, features: Tensor, d: int) -> Tensor:
        """Return logits (B, size) of number ``d``; ``features`` (B, H): outputs plus earlier rows."""
        return functional.silu(features + self.place[d]) @ self.weight[d] + self.bias[d]

    def _log_probs(self, outputs: Tensor, chosen: Tensor) -> Tensor:
        """Return log-probabilities (B, A, size) of all values, given those ``chosen`` (B, A) before each."""
        features, logits = outputs, []
        # All numbers together, by torch's cumulative sum and einsum, take twice as long.
        for d in range(self.width):
            logits.append(self._logits(features, d))
            features = features + self.table[d, chosen[:, d]]
        return torch.log_softmax(torch.stack(logits, 1), 2)

    def _choose(self, outputs: Tensor, uniform: Array | None) -> Tensor:
        """Choose (N, A) numbers of values one after the other: drawn with ``uniform`` (N, A), or the likeliest."""
        features, chosen = outputs, []
        for d in range(self.width):
            logits = self._logits(features, d)
            if uniform is None:
                choice = logits.argmax(1)
            else:
                choice = torch.from_numpy(sample(logits.numpy(), uniform[:, d : d + 1]).actions).long()
            features = features + self.table[d, choice]
            chosen.append(choice)
        return torch.stack(chosen, 1)

    def _places(self, actions: Tensor) -> Tensor:
        """Return where ``actions`` (B, A) lie among the values: 0 at the first, ``size - 1`` at the last."""
        return ((self.scaled(actions) + 1) / 2 * (self.size - 1)).clamp(0, self.size - 1)

    def _numbers(self, actions: Tensor) -> Tensor:
        return self._places(actions).round().long()

    def _values(self, chosen: Tensor) -> Tensor:
        return chosen.float() * (2 / (self.size - 1)) - 1

    def log_prob(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return log-probabilities (B, 1) of the values nearest to ``actions`` (B, A)."""
        chosen = self._numbers(actions)
        return self._log_probs(outputs, chosen).gather(2, chosen.unsqueeze(2)).sum(1)

    def cloning_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return cross entropies (B,); an action between two values counts as both, the more the nearer."""
        places = self._places(actions)
        neighbours = torch.stack([places.floor(), places.ceil()], 2).long()
        share = places - places.floor()
        logp = self._log_probs(outputs, self._numbers(actions)).gather(2, neighbours)
        return -((1 - share) * logp[..., 0] + share * logp[..., 1]).sum(1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """Return entropies (B, 1) of the numbers given those before them, summed along the likeliest action."""
        with torch.no_grad():
            likeliest = self._choose(outputs, None)
        logp = self._log_probs(outputs, likeliest)
        return -(logp.exp() * logp).sum(2).sum(1, keepdim=True)

    def _sample(self, outputs: Tensor, rng: UniformSource) -> Tensor:
        return self._values(self._choose(outputs, rng.uniform(self.width)))

    def _mode(self, outputs: Tensor) -> Tensor:
        """Return the means around the likeliest values, their neighbours included: finer than values lie apart."""
        chosen, numbers = self._choose(outputs, None), torch.arange(self.size)
        share = self._log_probs(outputs, chosen).exp() * ((numbers - chosen.unsqueeze(2)).abs() <= 1)
        return (share * self._values(numbers)).sum(2) / share.sum(2)


class Diffusion(Head):
    """Actions from noise in ``T`` steps: DDPM (Ho et al. 2020, https://arxiv.org/abs/2006.11239) as a policy.

    A small network predicts the noise in an action, conditioned on the outputs and an embedding of the step.

    Args:
        size: steps ``T``.
        features: outputs ``H`` of the network.
    """

    density = False

    def __init__(self, low: Array, high: Array, size: int, features: int, generator: torch.Generator) -> None:
        super().__init__(low, high, features)
        self.size = size
        # The cosine of Nichol and Dhariwal 2021 (https://arxiv.org/abs/2102.09672, equation 17): with few steps, a
        # linear schedule would spend most of them on mere noise.
        share = torch.arange(size + 1, dtype=torch.float64) / size
        curve = torch.cos((share + 0.008) / 1.008 * math.pi / 2) ** 2
        alpha = 1 - (1 - curve[1:] / curve[:-1]).clamp(max=0.999)  # of the variance in each step
        # Not saved: they follow from the number of steps.
        self.register_buffer("alpha", alpha.float(), persistent=False)
        self.register_buffer("alpha_bar", alpha.cumprod(0).float(), persistent=False)
        # The embedding of each step: sines and cosines (https://arxiv.org/abs/1706.03762).
        places = torch.arange(features)
        angle = torch.arange(size)[:, None] / 10_000 ** (places // 2 * 2 / features)
        self.register_buffer("step_table", torch.where(places % 2 == 0, angle.sin(), angle.cos()), persistent=False)
        self.alpha: Tensor
        self.alpha_bar: Tensor
        self.step_table: Tensor
        self.step = orthogonal(nn.Linear(features, features), 2**0.5, generator)
        self.noisy = orthogonal(nn.Linear(self.width, features), 2**0.5, generator)
        self.hidden = orthogonal(nn.Linear(features, features), 2**0.5, generator)
        self.noise = orthogonal(nn.Linear(features, self.width), 0.01, generator)

    def predicted(self, outputs: Tensor, noisy: Tensor, steps: Tensor) -> Tensor:
        """Return the noise (B, A) that is in ``noisy`` (B, A), scaled actions, after ``steps`` (B,) of noise."""
        features = outputs + self.noisy(noisy) + functional.silu(self.step(self.step_table[steps]))
        noise: Tensor = self.noise(functional.silu(self.hidden(functional.silu(features))))
        return noise

    def noise_loss(self, outputs: Tensor, actions: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
        """Return mean squared errors (B,) of the predicted ``noise`` (B, A) after ``steps`` (B,), each below ``T``."""
        alpha_bar = self.alpha_bar[steps].unsqueeze(1)
        noisy = alpha_bar.sqrt() * self.scaled(actions) + (1 - alpha_bar).sqrt() * noise
        return (self.predicted(outputs, noisy, steps) - noise).pow(2).mean(1)

    def cloning_loss(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return :meth:`noise_loss` (B,) with one random step and noise for each row."""
        # Equation 14 of Ho et al., without its weights of the steps, which they found to train better.
        # Seeded by the outputs, so that a resumed run draws the same as an unbroken one.
        seed = int(outputs.detach().double().sum().view(torch.int64))
        generator = torch.Generator().manual_seed(seed)
        steps = torch.randint(self.size, (len(outputs),), generator=generator).to(outputs.device)
        noise = torch.randn(actions.shape, generator=generator).to(outputs.device)
        return self.noise_loss(outputs, actions, steps, noise)

    def _denoise(self, outputs: Tensor, noise: Tensor) -> Tensor:
        """Return scaled actions (N, A) from ``noise`` (N, T, A): the start, then what each step but the last adds."""
        actions = noise[:, 0]
        for t in range(self.size - 1, -1, -1):
            alpha_bar, alpha = self.alpha_bar[t], self.alpha[t]
            earlier = self.alpha_bar[t - 1] if t else torch.ones_like(alpha_bar)
            predicted = self.predicted(outputs, actions, torch.full(outputs.shape[:1], t))
            # The action that the prediction implies, clipped to the bounds; then the posterior's mean (equations 7 and
            # 15).
            clean = ((actions - (1 - alpha_bar).sqrt() * predicted) / alpha_bar.sqrt()).clamp(-1, 1)
            actions = (earlier.sqrt() * (1 - alpha) * clean + alpha.sqrt() * (1 - earlier) * actions) / (1 - alpha_bar)
            if t:
                actions = actions + ((1 - alpha) * (1 - earlier) / (1 - alpha_bar)).sqrt() * noise[:, self.size - t]
        return actions

    def _sample(self, outputs: Tensor, rng: UniformSource) -> Tensor:
        noise = normal_numbers(rng, self.size * self.width)
        return self._denoise(outputs, torch.from_numpy(noise).view(-1, self.size, self.width))

    def _mode(self, outputs: Tensor) -> Tensor:
        """Return the actions denoised from zero noise: without a density there is no likeliest action."""
        return self._denoise(outputs, outputs.new_zeros(outputs.shape[0], self.size, self.width))
