"""All weights of a network in one piece of memory."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from multigrid_rl.fast.adam import Adam, adam_step

Floats = NDArray[np.float32]


class FlatWeights:
    """Moves weights into one row; the network keeps its parameters, which become views.

    ``parameters``: of a network, all of one type and on one device.

    Attributes:
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
        weighted = torch.cat([self.gradient * rows, self.gradient.new_tensor([extra * rows, float(rows)])])
        torch.distributed.all_reduce(weighted)
        mean = weighted[:-1] / weighted[-1].clamp(min=1.0)
        self.gradient.copy_(mean[:-1])
        return float(mean[-1])

    def clip(self, largest: float) -> Tensor:
        """Scale the gradient to a norm of at most ``largest``; returns the norm before (https://arxiv.org/abs/1211.5063)."""
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        norm_value = float(norm)
        # Also NaN. One such step would spoil Adam's moments for good: it is left out and counted, and many of
        # them mean divergence.
        if not norm_value < float("inf"):
            self.gradient.zero_()
            self.dropped += 1
        elif norm_value > largest:
            self.gradient.mul_(largest / (norm_value + 1e-6))
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
        """Take a step as ``step`` does, without hooks and groups, whose overhead exceeds that of a small network."""
        (weights,) = self.param_groups[0]["params"]
        if weights.device.type != "cpu" or weights.dtype != torch.float32:
            self.step()
            return
        row, (factors,) = self.next_steps(1)
        adam_step(*row, factors)
        self.count_steps(1)

    def next_steps(self, count: int) -> tuple[Adam, Floats]:
        """Return the row, and ``factors`` (count, 6) of the next steps, for ``fast.descent``; of weights on the CPU."""
        (group,) = self.param_groups
        (weights,) = group["params"]
        if not (state := self.state[weights]):
            state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(weights.data)}
            state["exp_avg_sq"] = torch.zeros_like(state["exp_avg"])
        (beta1, beta2), done, factors = group["betas"], float(state["step"]), []
        for steps in range(1, count + 1):
            size, root = group["lr"] / (1 - beta1 ** (done + steps)), math.sqrt(1 - beta2 ** (done + steps))
            factors.append((1 - beta1, beta2, 1 - beta2, -size, root, group["eps"]))
        row = weights.data, weights.grad, state["exp_avg"], state["exp_avg_sq"]
        return Adam(*(part.numpy() for part in row)), np.array(factors, np.float32)

    def count_steps(self, count: int) -> None:
        """Count steps that were taken with :meth:`next_steps`."""
        (weights,) = self.param_groups[0]["params"]
        self.state[weights]["step"].add_(count)


def parameters_of(net: Any, *, separate: bool) -> list[list[nn.Parameter]]:
    """Return the parameters of a network in one group, or in two: of the policy, of the values."""
    if not separate:
        return [list(net.parameters())]
    critic = {id(parameter) for parameter in net.value.parameters()}
    return [[parameter for parameter in net.parameters() if id(parameter) not in critic], list(net.value.parameters())]
