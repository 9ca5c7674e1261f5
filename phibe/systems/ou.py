"""Ornstein–Uhlenbeck processes, dX = A(X − μ)dt + S dB: processes whose every answer is a closed form.

A Gaussian start stays Gaussian [paper: Gaussian marginals of the OU process], so that all that a fit should find is
known to rounding: paths without any error of a time step, the marginal and its score at any t, the probability velocity
v = b − ½Σ∇log ρ_t [paper: probability velocity], and v̂, what PhiBE tends to at step Δt with infinitely many paths
[paper: OU population approximation]. Velocity and density are differentiable in x and in t, so that
∂ₜρ + ∇·(vρ) = 0 [paper: continuity equation] can be checked as it stands.

Read next: `phibe.objectives`, the equations whose minimisers, on paths simulated here, tend to v as Δt → 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phibe.calculus import differentiable
from phibe.trajectories import Trajectories


@dataclass(frozen=True)
class Gaussian:
    """N(mean, covariance), or a batch of them: `mean` (..., d), `covariance` (..., d, d)."""

    mean: Tensor
    covariance: Tensor

    def log_density(self, x: Tensor) -> Tensor:
        d = self.mean.shape[-1]
        quadratic = -(self.score(x) * (x - self.mean)).sum(-1)
        return -0.5 * (quadratic + torch.logdet(self.covariance) + d * math.log(2 * math.pi))

    def score(self, x: Tensor) -> Tensor:
        """∇ log ρ(x) = −C⁻¹(x − m)."""
        return -_apply(torch.linalg.inv(self.covariance), x - self.mean)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        d = self.mean.shape[-1]
        noise = torch.randn(n, d, dtype=self.mean.dtype, generator=generator)
        return self.mean + noise @ covariance_root(self.covariance).mT

    def quadrature(self, nodes: int = 20) -> tuple[Tensor, Tensor]:
        """Gauss–Hermite points (nodesᵈ, d) and weights (nodesᵈ,): exact means of polynomials of degree < 2·nodes."""
        points, weights = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(nodes))
        d = self.mean.shape[-1]
        grid = torch.cartesian_prod(*[points] * d).reshape(-1, d)
        shares = torch.cartesian_prod(*[weights / weights.sum()] * d).reshape(-1, d).prod(1)
        return self.mean + grid @ covariance_root(self.covariance).mT, shares


@dataclass(frozen=True)
class OU:
    """dX = A(X − μ)dt + S dB,  X₀ ~ N(m₀, C₀): any dimension d, any noise matrix S (d, r), stable or not.

    The paper writes the drift once as −Γ(x − μ) and once as +Γ(x − μ); here `A` is always what multiplies (x − μ).
    Everything is computed in float64.

    >>> import phibe, torch
    >>> ou = phibe.OU([[-1.0, -2.0], [2.0, -1.0]], [[1.0, 0.0], [0.0, 1.0]], C0=0.5 * torch.eye(2))  # stationary
    >>> ou.velocity(torch.tensor([[1.0, 0.0]]), 0.0)  # it rotates: 2Jx
    tensor([[0., 2.]], dtype=torch.float64)
    >>> ou.simulate(paths=3, times=[0.0, 0.1]).states.shape
    torch.Size([3, 2, 2])
    """

    A: Tensor
    S: Tensor
    mu: Tensor
    m0: Tensor
    C0: Tensor

    def __init__(self, A: Any, S: Any, *, mu: Any = None, m0: Any = None, C0: Any = None):
        A = torch.as_tensor(A, dtype=torch.float64)
        if A.ndim != 2 or A.shape[0] != A.shape[1]:
            raise ValueError(f"The drift matrix `A` must be square, (d, d); got shape {tuple(A.shape)}.")
        d = A.shape[0]
        mu, m0 = (torch.zeros(d) if mean is None else mean for mean in (mu, m0))
        C0 = torch.eye(d) if C0 is None else C0
        shapes = {"A": (d, d), "S": (d, -1), "mu": (d,), "m0": (d,), "C0": (d, d)}
        for (name, shape), value in zip(shapes.items(), (A, S, mu, m0, C0), strict=True):
            object.__setattr__(self, name, _shaped(value, name, shape))

    @staticmethod
    def reversible() -> OU:
        """The paper's reversible process: A = −diag(1, 4), S = I/√2, μ = (4, 4), X₀ ~ N(0, I)."""
        return OU([[-1.0, 0.0], [0.0, -4.0]], torch.eye(2, dtype=torch.float64) / math.sqrt(2), mu=[4.0, 4.0])

    @staticmethod
    def nonreversible() -> OU:
        """The paper's circulating process: A = [[−2, −1], [−1, −2]], S = diag(1, 1/√2), μ = (4, 4), X₀ ~ N(0, I)."""
        return OU([[-2.0, -1.0], [-1.0, -2.0]], [[1.0, 0.0], [0.0, 1 / math.sqrt(2)]], mu=[4.0, 4.0])

    @property
    def dimension(self) -> int:
        return self.A.shape[0]

    def drift(self, x: Tensor, t: Tensor | float = 0.0) -> Tensor:
        """b(x) = A(x − μ)."""
        return _apply(self.A, x - self.mu)

    def diffusion(self, x: Tensor) -> Tensor:
        """Σ(x) = S Sᵀ, the same everywhere."""
        return (self.S @ self.S.mT).expand(*x.shape, self.dimension)

    def transition(self, step: Tensor | float) -> tuple[Tensor, Tensor]:
        """e^{Ah} and Q_h = ∫₀ʰ e^{As} Σ e^{Aᵀs} ds, for a step or a batch of steps.

        One block exponential [Van Loan] for h/2ᵏ, where it is well conditioned, then k doublings,
        Q₂ₕ = Q_h + e^{Ah} Q_h e^{Aᵀh}.
        """
        d, step = self.dimension, torch.as_tensor(step, dtype=torch.float64)
        if not (step >= 0).all():
            raise ValueError(f"A time step must not be negative; got {float(step.min()):g}. Are the times sorted?")
        longest = float(step.detach().max()) * float(torch.linalg.matrix_norm(self.A, 2)) if step.numel() else 0.0
        doublings = max(0, math.ceil(math.log2(longest))) if longest > 0 else 0
        block = torch.zeros(2 * d, 2 * d, dtype=torch.float64)
        block[:d, :d], block[:d, d:], block[d:, d:] = -self.A, self.S @ self.S.mT, self.A.mT
        exponential = _exponential(block * (step / 2**doublings)[..., None, None])
        propagator = exponential[..., d:, d:].mT
        noise = propagator @ exponential[..., :d, d:]
        for _ in range(doublings):
            propagator, noise = propagator @ propagator, noise + propagator @ noise @ propagator.mT
        return propagator, (noise + noise.mT) / 2

    def simulate(
        self, *, paths: int, times: Any, generator: torch.Generator | None = None, seed: int = 0
    ) -> Trajectories:
        """Paths by the exact transition distribution at `times` (time,) or (path, time): no error at any step."""
        generator = generator or torch.Generator().manual_seed(seed)
        times = torch.as_tensor(times, dtype=torch.float64)
        propagators, covariances = self.transition(times.diff(dim=-1))
        start = self.marginal(times[..., 0])
        states = torch.randn(times.shape[-1], paths, self.dimension, dtype=torch.float64, generator=generator)
        states[0] = _apply(covariance_root(start.covariance), states[0]) + (start.mean - self.mu)
        if times.ndim == 2:
            propagators, covariances = propagators.movedim(1, 0), covariances.movedim(1, 0)
            states[1:] = _apply(covariance_root(covariances), states[1:])
            for i, own in enumerate(propagators):
                states[i + 1] += _apply(own, states[i])
        else:
            states[1:] = states[1:] @ covariance_root(covariances).mT
            for i, shared in enumerate(propagators):
                states[i + 1].addmm_(states[i], shared.mT)
        return Trajectories(states.add_(self.mu).movedim(0, 1), times)

    # -- exact answers ---------------------------------------------------------------------------------------------

    def marginal(self, t: Tensor | float) -> Gaussian:
        """That of X_t: mean μ + e^{At}(m₀ − μ), covariance e^{At} C₀ e^{Aᵀt} + Q_t   [paper: Gaussian marginals].

        For a batch of times, a batch of them; times that repeat are computed once, unless `t` is differentiated.
        """
        t = torch.as_tensor(t, dtype=torch.float64)
        if t.ndim == 0 or differentiable(t):
            propagator, noise = self.transition(t)
        else:
            values, index = t.unique(return_inverse=True)
            propagator, noise = (part[index] for part in self.transition(values))
        return Gaussian(self.mu + _apply(propagator, self.m0 - self.mu), propagator @ self.C0 @ propagator.mT + noise)

    def log_density(self, x: Tensor, t: Tensor | float) -> Tensor:
        return self._shared(t).log_density(x)

    def score(self, x: Tensor, t: Tensor | float) -> Tensor:
        return self._shared(t).score(x)

    def _shared(self, t: Tensor | float) -> Gaussian:
        """The marginals at the times of samples: one for all if the times are equal, unless `t` is differentiated."""
        t = torch.as_tensor(t, dtype=torch.float64)
        return self.marginal(t[0] if t.ndim and not differentiable(t) and bool((t == t[0]).all()) else t)

    def velocity(self, x: Tensor, t: Tensor | float) -> Tensor:
        """Probability velocity v = A(x − μ) + ½ Σ C_t⁻¹ (x − m_t)   [paper: probability velocity]."""
        return self.drift(x) - 0.5 * _apply(self.S @ self.S.mT, self.score(x, t))

    @property
    def is_stable(self) -> bool:
        return bool((torch.linalg.eigvals(self.A).real < 0).all())

    def stationary(self) -> Gaussian:
        """N(μ, B) with AB + BAᵀ = −Σ   [paper: Lyapunov equation]."""
        if not self.is_stable:
            values = ", ".join(f"{complex(z):.3g}" for z in torch.linalg.eigvals(self.A))
            needed = "every eigenvalue of `A` to have a negative real part"
            raise ValueError(f"A stationary distribution needs {needed}; they are {values}. Did you mean −A?")
        from scipy.linalg import solve_continuous_lyapunov

        solution = solve_continuous_lyapunov(self.A.numpy(), -(self.S @ self.S.mT).numpy())
        B = torch.from_numpy(np.asarray(solution))
        return Gaussian(self.mu, (B + B.mT) / 2)

    @property
    def is_reversible(self) -> bool:
        """Detailed balance holds exactly when AΣ is symmetric."""
        product = self.A @ self.S @ self.S.mT
        return bool((product - product.mT).norm() <= 1e-12 * (1 + product.norm()))

    def circulation(self) -> Tensor:
        """𝓑 = ½(A − B Aᵀ B⁻¹), the velocity's matrix once the process is stationary; zero for a reversible process."""
        B = self.stationary().covariance
        return 0.5 * (self.A - B @ self.A.mT @ torch.linalg.inv(B))

    def period(self) -> float:
        """Time of one turn of the (fastest) stationary orbit; infinite for a reversible process."""
        if self.is_reversible:
            return math.inf
        return 2 * math.pi / float(torch.linalg.eigvals(self.circulation()).imag.max())

    # -- what PhiBE sees at step Δt --------------------------------------------------------------------------------

    def increment_moments(self, x: Tensor, step: float) -> tuple[Tensor, Tensor]:
        """E[ΔX | x] = M_h(x − μ) and E[ΔX ΔXᵀ | x] = Q_h + M_h(x − μ)(x − μ)ᵀM_hᵀ, with M_h = e^{Ah} − I."""
        propagator, noise = self.transition(step)
        mean = _apply(propagator - torch.eye(self.dimension, dtype=torch.float64), x - self.mu)
        return mean, noise + mean[..., :, None] * mean[..., None, :]

    def phibe_velocity(self, x: Tensor, t: Tensor | float, *, step: float) -> Tensor:
        """Population PhiBE field v̂ at step h, in closed form and for every h   [paper: OU population approximation].

        v̂ = M(x−μ)/h − ½(M² + tr(M)M)(x−μ)/h + ½ Σ̂(x) C_t⁻¹(x − m_t): the raw second moment makes it cubic in x.
        """
        propagator, _ = self.transition(step)
        M = propagator - torch.eye(self.dimension, dtype=torch.float64)
        mean, second = self.increment_moments(x, step)
        divergence = _apply(M, mean) + M.trace() * mean
        return (mean - 0.5 * divergence - 0.5 * _apply(second, self.score(x, t))) / step


def _apply(matrix: Tensor, x: Tensor) -> Tensor:
    """matrix · x for one matrix or a batch of them; x (..., d)."""
    return (matrix @ x[..., None])[..., 0]


def _exponential(matrix: Tensor) -> Tensor:
    """e^M for one matrix or a batch. A lone one is sent with a twin: for it alone torch is only good to 1e-10 (its
    degree-8 polynomial has a wrong coefficient, pytorch issue 196592)."""
    batch = matrix.reshape(-1, *matrix.shape[-2:])
    return torch.linalg.matrix_exp(torch.cat([batch, batch[:1]]))[: len(batch)].reshape(matrix.shape)


def covariance_root(covariance: Tensor) -> Tensor:
    """A square root R with R Rᵀ = C that also exists when C is only semi-definite (noise in some directions)."""
    values, vectors = torch.linalg.eigh(covariance)
    return vectors * values.clamp(min=0).sqrt()[..., None, :]


def _shaped(value: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = torch.as_tensor(value, dtype=torch.float64)
    fits = tensor.ndim == len(shape) and all(n in (-1, m) for n, m in zip(shape, tensor.shape, strict=True))
    if not fits or not torch.isfinite(tensor).all():
        wanted = str(shape).replace("-1", "r")
        raise ValueError(f"`{name}` must be finite with shape {wanted} to match `A`; got shape {tuple(tensor.shape)}.")
    return tensor
