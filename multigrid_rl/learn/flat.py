"""All weights of a network in one piece of memory."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numba import prange
from numpy.typing import NDArray
from torch import Tensor, nn

from multigrid_rl.jit import float_shared

Floats = NDArray[np.float32]
#: Weights that torch steps at a time, at most.
_TOGETHER = 16


class FlatWeights:
    """Moves weights into one row; the network keeps its parameters, which become views.

    Args:
        parameters: of a network, all of one type and on one device.

    Attributes:
        parameters: of the network, in this order.
        weights: (P,) all of them.
        gradient: (P,) gradients; every parameter's ``grad`` is a part of it.
        dropped: number of non-finite gradients in :meth:`clip`; the reader may reset it.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        # Clipping, the optimiser and the sum over learners then process one tensor instead of a dozen.
        self.parameters = tuple(parameters)
        self.dropped = 0
        self.weights = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
        self.gradient = torch.zeros_like(self.weights)
        self.weights.grad = self.gradient
        first = 0
        for parameter in parameters:
            part = slice(first, first + parameter.numel())
            parameter.data = self.weights.data[part].view_as(parameter)
            parameter.grad = self.gradient[part].view_as(parameter)
            first = part.stop

    def all_reduce_mean(self, rows: int, extra: float) -> float:
        """Make the gradient the mean over the rows of all learners; ``rows``: rows behind this learner's gradient.

        All processes of torch's default group call it together. Returns the mean of ``extra`` over them.
        """
        # Counts differ: learners have equally many rows, but not equally many in which their agent was in the game. One
        # call for all numbers, as latency is what it costs.
        weighed = torch.cat([self.gradient * rows, self.gradient.new_tensor([extra * rows, float(rows)])])
        torch.distributed.all_reduce(weighed)
        mean = weighed[:-1] / weighed[-1].clamp(min=1.0)
        self.gradient.copy_(mean[:-1])
        return float(mean[-1])

    def clip(self, largest: float) -> Tensor:
        """Scale the gradient to a norm of at most ``largest`` (Pascanu et al. 2013, https://arxiv.org/abs/1211.5063).

        Returns:
            The norm before clipping.
        """
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        length = float(norm)
        # Also NaN. One such step would spoil Adam's moments for good: it is left out and counted, and divergence is
        # told from many of them.
        if not length < float("inf"):
            self.gradient.zero_()
            self.dropped += 1
        elif length > largest:
            self.gradient.mul_(largest / (length + 1e-6))
        return norm


class FlatAdam(torch.optim.Adam):
    """torch's fused Adam (Kingma and Ba 2015, https://arxiv.org/abs/1412.6980) over one row of weights."""

    # Without the wrapper that disables torch's compiler: importing the compiler takes a second.
    add_param_group = torch.optim.Optimizer.add_param_group.__wrapped__  # type: ignore[attr-defined]
    state_dict = torch.optim.Optimizer.state_dict.__wrapped__  # type: ignore[attr-defined]
    load_state_dict = torch.optim.Optimizer.load_state_dict.__wrapped__  # type: ignore[attr-defined]

    def __init__(self, flat: FlatWeights) -> None:
        super().__init__([flat.weights], fused=True)

    def rescale(self, parameters: Iterable[nn.Parameter], factor: float) -> None:
        """Scale the moments of ``parameters``, parts of the row, by ``factor``, as their gradients are from now on."""
        (weights,) = self.param_groups[0]["params"]
        state = self.state[weights]
        # Adam's step is m / sqrt(v): moments of gradients in the old unit would make the next ones too large or too
        # small.
        for parameter in parameters if state else ():
            part = slice(parameter.storage_offset(), parameter.storage_offset() + parameter.numel())
            state["exp_avg"][part] *= factor
            state["exp_avg_sq"][part] *= factor**2

    def descend(self) -> None:
        """Take a step as ``step`` does, without hooks and groups."""
        # Their overhead exceeds the step of a small network.
        (group,) = self.param_groups
        (weights,) = group["params"]
        state = self.state[weights]
        if weights.device.type != "cpu" or weights.dtype != torch.float32:
            self.step()
            return
        if not state:
            state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(weights.data)}
            state["exp_avg_sq"] = torch.zeros_like(state["exp_avg"])
        state["step"].add_(1)
        row = weights.data, weights.grad, state["exp_avg"], state["exp_avg_sq"]
        whole = len(weights) - len(weights) % _TOGETHER
        (beta1, beta2), steps = group["betas"], float(state["step"])
        size = group["lr"] / (1 - beta1**steps)
        factors = 1 - beta1, beta2, 1 - beta2, -size, math.sqrt(1 - beta2**steps), group["eps"]
        weight, gradient, mean, square = (part.numpy()[:whole] for part in row)
        _adam(weight, gradient, mean, square, np.array(factors, np.float32))
        # torch rounds the last few, which fill no register, otherwise.
        if whole < len(weights):
            options: dict[str, Any] = {key: group[key] for key in ("lr", "weight_decay", "eps", "amsgrad", "maximize")}
            rest: list[Any] = [[part[whole:]] for part in row]
            step: Any = torch._fused_adam_
            step(*rest, [], [state["step"]], beta1=beta1, beta2=beta2, **options)


@float_shared
def _adam(weights: Floats, gradient: Floats, mean: Floats, square: Floats, factors: Floats) -> None:
    """Take a step with torch's fused kernel's arithmetic, to the last bit; each thread takes a part of the row."""
    # m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, w -= lr m' / (sqrt(v') + eps), with m' and v' corrected for
    # their start at 0: algorithm 1 of the paper. The order of terms decides which product is rounded.
    c1, b2, c2, size, root, eps = factors[0], factors[1], factors[2], factors[3], factors[4], factors[5]
    for i in prange(len(weights)):
        mean[i] = mean[i] + c1 * (gradient[i] - mean[i])
        square[i] = c2 * gradient[i] * gradient[i] + square[i] * b2
        weights[i] = weights[i] + size * mean[i] / (np.sqrt(square[i]) / root + eps)
