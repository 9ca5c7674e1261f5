"""Cost of the Navier–Stokes solver for a unit of time of one path, against the published recipe: Euler–Maruyama with
complex transforms at dt = 1e-4. Both start from one field and see one path of the noise, so that fields and spectra can
be compared at the end. Prints JSON; processor time of one thread."""

import json
import math
import time

import torch

from phibe.experiments.turbulence.solver import NavierStokes
from phibe.experiments.turbulence.spectra import spectral_distance

EULER = 1e-4


class EulerMaruyama:
    """ω̂ ← ω̂ + dt(−(v·∇ω)^ − (ν|k|² + α)ω̂) + noise, with fft2 of v, ∇ω and their product; (path, n, n)."""

    def __init__(self, system: NavierStokes):
        n = system.grid
        k = torch.fft.fftfreq(n, 1 / n)
        self.kx, self.ky = k[None, :], k[:, None]
        square = self.kx**2 + self.ky**2
        self.inverse = torch.where(square > 0, 1 / square.clamp(min=1), 0)
        self.decay = system.viscosity * square + system.damping
        self.kept = (self.kx.abs() < n / 3) & (self.ky.abs() < n / 3)
        place = torch.arange(n) * (2 * math.pi / n)
        phases = [mode.kx * place[None, :] + mode.ky * place[:, None] for mode in system.forcing]
        self.shapes = torch.fft.fft2(torch.stack([f for phase in phases for f in (phase.cos(), phase.sin())]))

    def step(self, omega: torch.Tensor, dB: torch.Tensor) -> torch.Tensor:
        psi = omega * self.inverse
        u, v = torch.fft.ifft2(1j * self.ky * psi).real, torch.fft.ifft2(-1j * self.kx * psi).real
        slope = [torch.fft.ifft2(1j * k * omega).real for k in (self.kx, self.ky)]
        carried = torch.fft.fft2(u * slope[0] + v * slope[1]) * self.kept
        return omega - EULER * (carried + self.decay * omega) + torch.einsum("pr,rij->pij", dB + 0j, self.shapes)


def seconds(work) -> float:
    """Processor time of one call, the best of three."""
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def refined(fields: torch.Tensor, grid: int) -> torch.Tensor:
    """The same waves on a finer grid."""
    n, half = fields.shape[-1], fields.shape[-1] // 2
    coarse, fine = torch.fft.rfft2(fields), torch.zeros(*fields.shape[:-2], grid, grid // 2 + 1, dtype=torch.complex64)
    fine[..., :half, :half], fine[..., -half:, :half] = coarse[..., :half, :half], coarse[..., -half:, :half]
    return torch.fft.irfft2(fine, s=(grid, grid)) * (grid / n) ** 2


def both(system: NavierStokes, start: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The fields of both solvers after so many of the longer steps, on one path of the noise."""
    plain, short, long = EulerMaruyama(system), system.step(EULER), system.step(system.largest_step)
    euler, omega = torch.fft.fft2(start), system.spectral(start)
    count = round(long.h / EULER)
    noise = short.draw(steps * count * len(start), generator=torch.Generator().manual_seed(0))
    noise = noise.unflatten(0, (steps, count, -1))
    joined = noise[:, 0]
    for part in noise[:, 1:].unbind(1):
        joined = short.joined(joined, part)
    for part in noise.flatten(0, 1):
        euler = plain.step(euler, part[..., 0].float())
    for part in joined:
        omega = long(omega, system.advection, part)
    return torch.fft.ifft2(euler).real, system.physical(omega)


def compare(system: NavierStokes, start: torch.Tensor, steps: int) -> dict[str, float]:
    """Costs at the solvers' own steps, and how far their fields and spectra are apart."""
    plain, dB = EulerMaruyama(system), torch.randn(len(start), 8) * math.sqrt(EULER)
    omega, h = torch.fft.fft2(start), system.largest_step
    units = 25 * h
    euler = seconds(lambda: [plain.step(omega, dB) for _ in range(10)]) / (10 * EULER) / len(start)
    ours = seconds(lambda: system.simulate(start=start[:, None], times=[0, units])) / units / len(start)
    a, b = both(system, start, steps)
    circles = math.ceil(system.grid / 3) - 1
    return {
        "paths_at_once": len(start),
        "step": h,
        "seconds_per_unit_and_path": round(ours, 4),
        "euler_seconds_per_unit_and_path": round(euler, 2),
        "ratio": round(euler / ours, 1),
        "compared_after": round(h * steps, 6),
        "relative_distance_of_fields": float(f"{float((a - b).norm() / a.norm()):.2g}"),
        "rms_log10_distance_of_spectra": float(f"{float(spectral_distance(b, a, highest=circles)):.2g}"),
    }


def main() -> None:
    torch.set_num_threads(1)
    coarse = NavierStokes(64)
    start = coarse.simulate(paths=4, times=[0, 1], spin_up=30.0, seed=0).states[:, -1]
    fine = NavierStokes(256)
    developed = fine.simulate(start=refined(start[:1], 256), times=[0, 3], seed=0).states[:, -1, 0]
    results = {
        "64": compare(coarse, start[:, 0], steps=25),
        "256": compare(fine, developed, steps=20),
    }
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
