"""Networks and objectives of a user's own, most of them mistaken, for tests."""

SOURCE = """
import torch
from torch import nn


class Small(nn.Module):
    state_size = 0

    def __init__(self, observation_space, outputs, hidden, generator):
        super().__init__()
        size = observation_space.shape[0]
        self.policy, self.value = nn.Linear(size, outputs), nn.Linear(size, 1)
        for layer in (self.policy, self.value):
            nn.init.normal_(layer.weight, generator=generator)

    def logits(self, obs):
        return self.policy(obs)

    def forward(self, obs):
        return self.logits(obs), self.value(obs).squeeze(-1)


class Bare(nn.Module):
    def __init__(self, *given):
        super().__init__()


def doubled(logp, rows, clip):
    return 2 * logp * rows.advantages


def meaned(logp, rows, clip):
    return (logp * rows.advantages).mean()


def detached(logp, rows, clip):
    return logp.detach() * rows.advantages


def two(logp, rows):
    return logp


class FewerOut(Small):
    def __init__(self, observation_space, outputs, hidden, generator):
        super().__init__(observation_space, outputs - 1, hidden, generator)


class WideValue(Small):
    def forward(self, obs):
        return self.logits(obs), self.value(obs)


class Other(Small):
    def forward(self, obs):
        return -self.logits(obs), self.value(obs).squeeze(-1)


class LogitsAlone(Small):
    def forward(self, obs):
        return self.logits(obs)


class NoModule:
    state_size = 0

    def __init__(self, observation_space, outputs, hidden, generator):
        self.asked = hidden[5:]

    def logits(self, obs):
        return obs


class Careless(Small):
    def __init__(self, observation_space, outputs, hidden, generator):
        raise IndexError(outputs)


class NoNumber(Small):
    def logits(self, obs):
        return self.policy(obs) * float("nan")


class NoGradient(Small):
    def forward(self, obs):
        return self.logits(obs).detach(), self.value(obs).squeeze(-1)


class Doubles(Small):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.double()

    def logits(self, obs):
        return self.policy(obs.double())

    def forward(self, obs):
        return self.logits(obs), self.value(obs.double()).squeeze(-1)


class Lazy(Small):
    def __init__(self, *given):
        super().__init__(*given)
        self.policy = nn.LazyLinear(2)


class Masked(Small):
    def __init__(self, *given):
        super().__init__(*given)
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))


class Normed(Small):
    def __init__(self, observation_space, *given):
        super().__init__(observation_space, *given)
        self.norm = nn.BatchNorm1d(observation_space.shape[0])

    def logits(self, obs):
        return self.policy(self.norm(obs))


class Remembers(nn.Module):
    def __init__(self, observation_space, outputs, hidden, generator):
        super().__init__()
        self.state_size = hidden[0]
        self.core = nn.GRUCell(observation_space.shape[0], hidden[0])
        self.policy, self.value = nn.Linear(hidden[0], outputs), nn.Linear(hidden[0], 1)

    def forward(self, obs, memory):
        memory = self.core(obs, memory)
        return self.policy(memory), self.value(memory).squeeze(-1), memory

    def sequence(self, obs, memory, starts):
        steps = []
        for t in range(obs.shape[1]):
            *step, memory = self(obs[:, t], memory * ~starts[:, t, None])
            steps.append(step)
        outputs, values = (torch.stack(part, 1).flatten(0, 1) for part in zip(*steps))
        return outputs, values


class NoSequence(Remembers):
    sequence = None


class NeverStarts(Remembers):
    def sequence(self, obs, memory, starts):
        return super().sequence(obs, memory, torch.zeros_like(starts))


class StepByStep(Remembers):
    def sequence(self, obs, memory, starts):
        outputs, values = super().sequence(obs, memory, starts)
        rows, steps = obs.shape[:2]
        turned = outputs.view(rows, steps, -1).transpose(0, 1).flatten(0, 1)
        return turned, values.view(rows, steps).T.flatten()


def lost(logp, rows, clip):
    return logp * torch.log(rows.advantages)


def in_place(logp, rows, clip):
    rows.advantages.mul_(0)
    return logp * rows.advantages


def misnamed(logp, rows, clip):
    return logp * rows.advantage


def of_three(logp, rows, clip):
    given = logp * rows.advantages
    return given if len(given) == 3 else given.mean()


calls = []


def later(logp, rows, clip):
    calls.append(clip)
    if len(calls) > 4:
        raise ValueError("no more")
    return logp * rows.advantages
"""
#: Line of SOURCE on which ``later`` raises.
LATER = SOURCE.partition('raise ValueError("no more")')[0].count("\n") + 1
