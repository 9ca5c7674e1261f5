"""Derivatives of a network, tested by number: is it smooth in x, and are the parameter gradients right?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from phibe.calculus import along


@contextmanager
def fixed(x: Tensor, seed: int) -> Iterator[None]:
    """Random numbers from the seed, and the caller's own untouched."""
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.manual_seed(seed)
        yield


@torch.no_grad()
def check_kinks(network: nn.Module, x: Tensor, t: Tensor, dx: Tensor) -> None:
    """v and its derivative are continuous along the lines x + s Δx, s in [−2, 2].

    Each line is cut into cells, and each cell is halved again and again, always keeping the half with the larger
    change: over a smooth function the change goes to zero with the width, over a kink (ReLU, |·|, clamp, max) it stays.
    A network on a large state has so many units that one line meets plenty of kinks, if they have any.
    """
    cells = 16 if x[0].numel() <= 64 else 1
    x, t, dx = (part[:cells] for part in (x, t, dx))
    lines, stamps, ways = (part.repeat_interleave(cells, 0) for part in (x, t, dx))
    seed = torch.initial_seed()

    def look(s: Tensor) -> Tensor:
        with fixed(x, seed):
            v, slope = along(lambda z: network(z, stamps), lines + s.reshape(-1, *[1] * (x.ndim - 1)) * ways, ways)
        return torch.stack([v, slope], dim=1).reshape(len(s), 2, x.shape[1], -1)

    edges = torch.linspace(-2, 2, cells + 1, dtype=x.dtype, device=x.device)
    left, right = (part.repeat(len(x)) for part in (edges[:-1], edges[1:]))
    at_left, at_right = look(left), look(right)
    size = torch.maximum(at_left.abs(), at_right.abs()).amax((0, 3), keepdim=True)  # of each coordinate or channel
    size = torch.maximum(size, 1e-9 * size.amax(2, keepdim=True)).clamp(min=1e-300)
    for _ in range(30):
        middle = (left + right) / 2
        at_middle = look(middle)
        keep = _change(at_left, at_middle, size) > _change(at_middle, at_right, size)
        left, right = torch.where(keep, left, middle), torch.where(keep, middle, right)
        wide = keep[:, None, None, None]
        at_left, at_right = torch.where(wide, at_left, at_middle), torch.where(wide, at_middle, at_right)
        if float(_change(at_left, at_right, size).max()) < 1e-6:
            return
    raise ValueError(
        "The velocity has kinks or jumps in x (a functional relu, abs, clamp, max or rounding?): autograd drops them "
        "from the Jacobian term, and the fit is biased. Use SiLU, GELU or tanh, or objective='symmetric'."
    )


def _change(a: Tensor, b: Tensor, size: Tensor) -> Tensor:
    """Largest change of a coordinate of v or of its slope, in units of its size; (n, 2, C, rest)² → (n,)."""
    return ((b - a).abs() / size).flatten(1).amax(1)


def check_gradient(network: nn.Module, x: Tensor, t: Tensor, dx: Tensor, objective: Callable[..., Tensor]) -> float:
    """Compare ∂L/∂θ · u with (L(θ + εu) − L(θ − εu))/2ε along random directions u; the largest relative error.

    Relative to the size √Σ(gᵢuᵢ)² that such a product has. Where it fails, each parameter is tried alone to name one.
    """
    loss = _loss(network, x, t, dx, objective)
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad and p.numel()}
    value = loss()
    if not value.requires_grad:
        raise ValueError("The velocity does not depend on the parameters. A `detach` or `no_grad` in `forward`?")
    gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)

    def error(names: Iterable[str]) -> float:
        ways = {n: torch.randn_like(p) * p.detach().square().mean().sqrt() for n, p in parameters.items() if n in names}
        pulls = [g * ways[n] for n, g in zip(parameters, gradients, strict=True) if g is not None and n in ways]
        product, size = sum(float(a.sum()) for a in pulls), sum(float(a.square().sum()) for a in pulls) ** 0.5
        difference = _difference(loss, {parameters[n]: u for n, u in ways.items()})
        return abs(product - difference) / max(size, 1e-5 * abs(value.item()), 1e-300)

    worst = max(error(parameters) for _ in range(3))
    if worst < 1e-4:
        return worst
    name = max(parameters, key=lambda n: error([n]))
    raise ValueError(
        f"The objective's parameter gradient is {100 * worst:.2g} % away from finite differences, most at `{name}`. "
        "An operation behind it (a `detach`, an autograd function of your own?) is not right under this objective; "
        "write it with others."
    )


def _loss(
    network: nn.Module, x: Tensor, t: Tensor, dx: Tensor, objective: Callable[..., Tensor]
) -> Callable[[], Tensor]:
    """The mean objective as a function of the parameters alone, at a Δt that lets no term hide another."""
    seed = torch.initial_seed()
    with torch.no_grad():
        dt = (dx.norm() / network(x, t).norm().clamp(min=1e-12 * float(dx.norm()))).expand(len(x))

    def loss() -> Tensor:
        with fixed(x, seed):
            return objective(network, x, t, dx, dt).mean()

    return loss


@torch.no_grad()
def _difference(loss: Callable[[], Tensor], ways: dict[Tensor, Tensor], *, step: float = 1e-6) -> float:
    """(L(θ + εu) − L(θ − εu))/2ε, with θ put back bit by bit."""
    start = {p: p.clone() for p in ways}
    values = []
    for sign in (1, -1):
        for p, u in ways.items():
            p.copy_(start[p] + sign * step * u)
        values.append(float(loss()))
    for p, value in start.items():
        p.copy_(value)
    return (values[0] - values[1]) / (2 * step)
