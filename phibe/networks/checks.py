"""Checks: is a network fit for an objective that differentiates it in x, and are its parameter gradients right?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import batchnorm, pooling

from phibe.calculus import along
from phibe.objectives import find_objective, phibe, regression

# -- derivatives of a network, tested by number ------------------------------------------------------------------------


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Random numbers from the seed, on the CPU and the device, and the caller's own untouched."""
    with torch.random.fork_rng(devices=[device] if device and device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; each part then goes back to its own mode, for some may be frozen on purpose."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


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
        with seeded(seed, x.device):
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
    kinks = "kinks or jumps in x (a functional relu, abs, clamp, max or rounding?)"
    raise ValueError(f"The velocity has {kinks}: {_KINK}. Use {_SMOOTH}, or objective='symmetric'.")


def _change(a: Tensor, b: Tensor, size: Tensor) -> Tensor:
    """Largest change of a coordinate of v or of its slope, in units of its size; (n, 2, C, rest)² → (n,)."""
    return ((b - a).abs() / size).flatten(1).amax(1)


def check_gradient(network: nn.Module, x: Tensor, t: Tensor, dx: Tensor, objective: Callable[..., Tensor]) -> float:
    """Compare ∂L/∂θ · u with (L(θ + εu) − L(θ − εu))/2ε along random directions u; the largest relative error.

    Relative to the size √Σ(gᵢuᵢ)² that such a product has. Where it fails, each parameter is tried alone to name one.
    """
    seed = torch.initial_seed()
    with torch.no_grad():  # a Δt that lets no term hide another
        dt = (dx.norm() / network(x, t).norm().clamp(min=1e-12 * float(dx.norm()))).expand(len(x))

    def loss() -> Tensor:
        with seeded(seed, x.device):
            return objective(network, x, t, dx, dt).mean()

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
    far = f"{100 * worst:.2g} % away from finite differences, most at `{name}`"
    raise ValueError(f"The objective's parameter gradient is {far}. A `detach`, or an autograd function of your own?")


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


_KINK = "its slope jumps, autograd drops these jumps from the Jacobian term, and the fit is biased"
_MIXED = "in training it mixes the samples of a batch, so that a velocity depends on the others drawn with it"
_SMOOTH = "nn.SiLU, nn.GELU or nn.Tanh"
_POOLS = (pooling._MaxPoolNd, pooling._AdaptiveMaxPoolNd, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)

REFUSED: list[tuple[tuple[type[nn.Module], ...], str, str]] = [
    ((batchnorm._BatchNorm,), _MIXED, "nn.GroupNorm, or freeze it with `.eval()`"),
    ((nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.SELU), _KINK, _SMOOTH),
    ((nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Hardshrink, nn.Softshrink, nn.Threshold), _KINK, _SMOOTH),
    (_POOLS, _KINK, "nn.AvgPool2d or a strided convolution"),
]
"""Modules that objectives with a Jacobian cannot take: which, why, and what to use instead."""


def check_network(network: nn.Module, x: Tensor, t: Tensor | None = None, *, objective: str = "phibe") -> float:
    """Largest relative error of the objective's parameter gradient against central differences; ValueError if the
    network will not do, naming the module, the reason and the replacement.

    Any module called as v(x, t) may be checked on a few states x (n, *state), t (n,) of the data. It is left as it is:
    the numbers come from a float64 copy, a few states and a fixed seed (so dropout is welcome). On the meta device,
    where there are no numbers, the answer is nan.
    """
    jacobian = find_objective(objective).jacobian
    t = torch.linspace(0, 1, len(x), dtype=x.dtype, device=x.device) if t is None else t
    if x.ndim < 2 or not len(x) or not x.is_floating_point() or t.shape != x.shape[:1]:
        got = f"{x.dtype} {tuple(x.shape)} and {tuple(t.shape)}"
        raise ValueError(f"`x` must be floats (n, *state) and `t` (n,); got {got}.")
    if not any(p.requires_grad for p in network.parameters()):
        raise ValueError(f"{type(network).__name__} has no trainable parameters. Frozen with `requires_grad_(False)`?")
    few = 8 if x[0].numel() <= 64 else 2
    x, t = x[:few].detach(), t[:few].detach()
    if jacobian:
        _check_modules(network)
    try:
        twin = copy.deepcopy(network)
    except (RuntimeError, TypeError) as error:
        fix = "Does it keep a tensor of an earlier call? Detach it."
        raise ValueError(f"{type(network).__name__} cannot be copied: {error} {fix}") from error
    with seeded(0, x.device):
        _check_call(twin, x, t)
        if x.is_meta:
            return float("nan")
        device = x.device if x.is_cuda else torch.device("cpu")  # not every device has float64
        x, t, twin = x.to(device, torch.float64), t.to(device, torch.float64), twin.to(device, torch.float64)
        for p in (p for p in twin.parameters() if p.numel() and not p.any()):
            nn.init.normal_(p, std=max(1, p.shape[1:].numel()) ** -0.5)  # a last layer of zeros would hide errors
        dx = torch.randn(x.shape, dtype=x.dtype).to(device) * _spread(x)
        with _explained(twin, "its float64 copy"):
            _check_samples(twin, x, t)
            if jacobian:
                check_kinks(twin, x, t, dx)
            return check_gradient(twin, x, t, dx, phibe if jacobian else regression)


def _spread(x: Tensor) -> Tensor:
    """Standard deviation of each coordinate; where there is none, the size of the states, or one."""
    spread, size = x.std(0, correction=0), x.abs().mean()
    return torch.where(spread > 0, spread, size if size > 0 else 1.0)


def _check_modules(network: nn.Module) -> None:
    for path, module in network.named_modules():
        if isinstance(module, batchnorm._BatchNorm) and not module.training and module.running_mean is not None:
            continue  # it only applies its stored mean and variance: an affine map, and harmless
        for kinds, reason, replacement in REFUSED:
            if isinstance(module, kinds):
                refused = f"{_name(path, module)} cannot be used with an objective that differentiates the velocity"
                raise ValueError(f"{refused}: {reason}. Use {replacement}, or objective='symmetric'.")


def _check_call(network: nn.Module, x: Tensor, t: Tensor) -> None:
    x, before = x.clone(), x
    where = f"x {tuple(x.shape)}, {x.dtype} on {x.device}, t {tuple(t.shape)}"
    with torch.no_grad(), _explained(network, where):
        v = network(x, t.clone())
    _check_output(v, x)
    if x.is_meta:
        return
    if not torch.equal(x, before):
        raise ValueError("The network changes x in place, and with it the data. Replace e.g. `x += a` by `x = x + a`.")
    if not torch.isfinite(v).all():
        sample = int((~torch.isfinite(v.flatten(1)).all(1)).nonzero()[0])
        raise ValueError(f"The velocity of sample {sample} is not finite. A log, root or division? States too large?")


def _check_output(v: Any, x: Tensor) -> None:
    if not isinstance(v, Tensor) or v.shape != x.shape:
        got = tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__
        raise ValueError(f"A velocity must have the shape of the state: {tuple(x.shape)} was needed, got {got}.")
    if v.dtype != x.dtype or v.device != x.device:
        got = f"{x.dtype} on {x.device}, as the state is; got {v.dtype} on {v.device}"
        raise ValueError(f"A velocity must be {got}. A tensor made in `forward`? Give it x.dtype and x.device.")


@contextmanager
def _explained(network: nn.Module, where: str) -> Iterator[None]:
    """Errors raised inside the network become ValueErrors that name the module they come from and the likely fix."""
    names = {module: _name(path, module) for path, module in network.named_modules()}
    inside: list[str] = []

    def leave(*_: Any) -> None:  # a hook that returned something would change the output
        inside.pop()

    handles = [module.register_forward_pre_hook(lambda module, _: inside.append(names[module])) for module in names]
    handles += [module.register_forward_hook(leave) for module in names]
    try:
        yield
    except (RuntimeError, TypeError, IndexError) as error:
        message = str(error).split("\n")[0].rstrip(".")
        place = inside[-1] if inside else type(network).__name__
        raise ValueError(f"{place} failed on {where}: {message}. {_hint(message)}") from error
    finally:
        for handle in handles:
            handle.remove()


def _hint(message: str) -> str:
    if "attention" in message and "forward AD" in message:
        return "Fused attention has no forward derivative: call it inside `with sdpa_kernel(SDPBackend.MATH):`."
    if "forward AD" in message or "jvp" in message:
        return "torch cannot differentiate this operation forward: write it with others, or use objective='symmetric'."
    if "in-place" in message or "inplace" in message:
        return "Write it without the in-place operation."
    if "dtype" in message or "device" in message:
        return "Weights, constants and data must share one dtype and device: `net.to(x.device, x.dtype)`."
    return "A velocity is called as v(x, t) with x (n, *state) and t (n,)."


def _name(path: str, module: nn.Module) -> str:
    return f"`{path}` ({type(module).__name__})" if path else type(module).__name__


@torch.no_grad()
def _check_samples(network: nn.Module, x: Tensor, t: Tensor) -> None:
    """Each sample has a velocity of its own, whatever else is in the batch (in evaluation mode)."""
    with evaluating(network):
        together = network(x, t)
        _check_output(together, x)
        alone = torch.cat([network(x[i : i + 1], t[i : i + 1]) for i in range(len(x))])
    if not torch.allclose(together, alone, rtol=1e-6, atol=1e-9 * float(together.abs().max())):
        raise ValueError("The velocity of a sample depends on the others in its batch. A mean over dimension 0?")
