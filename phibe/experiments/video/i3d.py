"""I3D, the network behind the Fréchet video distance, with weights that the user brings.

No weights come with this package. A file is read only if its SHA-256 is the one that the caller states: a TorchScript
archive holds code that runs when it is called, so that the hash is what stands between you and a stranger's program. A
state dict is read as tensors alone, into the network below.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn
from torch.nn import functional as F

FVD = "FVD"
"""The name of the distance between features of this network, and of no other."""

SIZE, SHORTEST = 224, 9
"""Side of the frames that I3D was trained on, and the fewest frames from which its last pooling has two."""

MIXED = {  # features into a block, then out of its branches: 1 × 1, 1 × 1 → 3 × 3, 1 × 1 → 3 × 3, pooled 1 × 1
    "Mixed_3b": (192, (64, 96, 128, 16, 32, 32)),
    "Mixed_3c": (256, (128, 128, 192, 32, 96, 64)),
    "Mixed_4b": (480, (192, 96, 208, 16, 48, 64)),
    "Mixed_4c": (512, (160, 112, 224, 24, 64, 64)),
    "Mixed_4d": (512, (128, 128, 256, 24, 64, 64)),
    "Mixed_4e": (512, (112, 144, 288, 32, 64, 64)),
    "Mixed_4f": (528, (256, 160, 320, 32, 128, 128)),
    "Mixed_5b": (832, (256, 160, 320, 32, 128, 128)),
    "Mixed_5c": (832, (384, 192, 384, 48, 128, 128)),
}
POOLS = {  # kernel and stride of the pooling in front of a block, each (time, height, width)
    "Conv3d_2b_1x1": ((1, 3, 3), (1, 2, 2)),
    "Mixed_3b": ((1, 3, 3), (1, 2, 2)),
    "Mixed_4b": ((3, 3, 3), (2, 2, 2)),
    "Mixed_5b": ((2, 2, 2), (2, 2, 2)),
}


class I3DFeatures:
    """The logits of I3D, which make a Fréchet distance the FVD: clips (clip, time, 1, H, W) in [0, 1] → (clip, 400)."""

    title = FVD

    def __init__(self, network: Any, sha256: str, *, scripted: bool):
        self.network, self.scripted = network, scripted
        self.identity = f"I3D {sha256[:12]} at {SIZE}×{SIZE}"

    @torch.no_grad()
    def __call__(self, clips: Tensor, *, block: int = 2) -> Tensor:
        if clips.shape[1] < SHORTEST:
            raise ValueError(f"I3D needs clips of {SHORTEST} frames or more; got {clips.shape[1]}.")
        return torch.cat([self._logits(prepare(part)) for part in clips.split(block)])

    def _logits(self, x: Tensor) -> Tensor:
        if self.scripted:
            return self.network(x, rescale=False, resize=False, return_features=True)
        return self.network(x)


def prepare(clips: Tensor) -> Tensor:
    """Clips as I3D reads them: (clip, 3, time, 224, 224) from −1 to 1, resized bilinearly."""
    flat = clips.float().flatten(0, 1)
    large = F.interpolate(flat, size=(SIZE, SIZE), mode="bilinear", align_corners=False)
    return 2 * large.unflatten(0, clips.shape[:2]).transpose(1, 2).expand(-1, 3, -1, -1, -1) - 1


def open_i3d(path: str | Path, *, sha256: str = "") -> I3DFeatures:
    """Features of the I3D weights in a file: a TorchScript archive that takes `rescale`, `resize` and
    `return_features`, as is common for FVD, or a state dict (.pt, .safetensors) with the names of pytorch-i3d."""
    path = Path(path)
    if not path.exists():
        raise ValueError(f"There is no file {path}.")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if sha256.lower() != found:
        raise ValueError(
            f"{path} has the SHA-256 {found}, not {sha256 or 'a stated one'}. Compare it with what its publisher "
            "states and pass that as `sha256`; a TorchScript archive can run any code."
        )
    if _is_script(content):
        return I3DFeatures(torch.jit.load(io.BytesIO(content), map_location="cpu").eval(), found, scripted=True)
    with torch.device("meta"):  # no weights of its own: those of the file take their places
        network = I3D()
    _load(network, _tensors(content, path), path)
    return I3DFeatures(network.eval().requires_grad_(False), found, scripted=False)


def _is_script(content: bytes) -> bool:
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return False
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return any("/code/" in name for name in archive.namelist())


def _tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return load_safetensors(content)
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"{path} is neither a TorchScript archive nor a file of tensors alone: {error}") from error


def _load(network: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    try:
        network.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise ValueError(f"{path} does not hold the weights of pytorch-i3d's InceptionI3d: {error}") from error


# -- the network -------------------------------------------------------------------------------------------------------


class I3D(nn.Module):
    """Inception-v1 inflated to three dimensions   [Carreira and Zisserman 2017]: (n, 3, time, 224, 224) → (n, 400), the
    mean over time of the logits of Kinetics' actions; modules have the names of pytorch-i3d."""

    def __init__(self, classes: int = 400):
        super().__init__()
        self.Conv3d_1a_7x7 = Unit(3, 64, 7, stride=2)
        self.Conv3d_2b_1x1 = Unit(64, 64, 1)
        self.Conv3d_2c_3x3 = Unit(64, 192, 3)
        for name, (width, out) in MIXED.items():
            self.add_module(name, Mixed(width, out))
        self.logits = Logits(1024, classes)

    def forward(self, x: Tensor) -> Tensor:
        for name, part in self.named_children():
            if name in POOLS:
                kernel, stride = POOLS[name]
                x = F.max_pool3d(_pad(x, kernel, stride), kernel, stride)
            x = part(x)
        return x


class Unit(nn.Module):
    """Convolution, normalisation by stored moments, ReLU; as many places come out as strides fit in."""

    def __init__(self, width: int, out: int, kernel: int, *, stride: int = 1):
        super().__init__()
        self.conv3d = nn.Conv3d(width, out, kernel, stride=stride, bias=False)
        self.bn = nn.BatchNorm3d(out, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv3d(_pad(x, self.conv3d.kernel_size, self.conv3d.stride))))


class Mixed(nn.Module):
    """Four branches side by side."""

    def __init__(self, width: int, out: tuple[int, ...]):
        super().__init__()
        self.b0 = Unit(width, out[0], 1)
        self.b1a, self.b1b = Unit(width, out[1], 1), Unit(out[1], out[2], 3)
        self.b2a, self.b2b = Unit(width, out[3], 1), Unit(out[3], out[4], 3)
        self.b3b = Unit(width, out[5], 1)

    def forward(self, x: Tensor) -> Tensor:
        cube = (3, 3, 3)
        pooled = F.max_pool3d(_pad(x, cube, (1, 1, 1)), cube, 1)
        return torch.cat([self.b0(x), self.b1b(self.b1a(x)), self.b2b(self.b2a(x)), self.b3b(pooled)], dim=1)


class Logits(nn.Module):
    def __init__(self, width: int, classes: int):
        super().__init__()
        self.conv3d = nn.Conv3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3d(F.avg_pool3d(x, (2, 7, 7), stride=1)).mean((2, 3, 4))


def _pad(x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Zeros around x (n, c, t, h, w) so that ⌈size/stride⌉ places fit; an odd one goes to the end."""
    margins: list[int] = []
    for size, k, s in zip(x.shape[2:], kernel, stride, strict=True):
        total = max((-(-size // s) - 1) * s + k - size, 0)
        margins = [total // 2, total - total // 2, *margins]
    return F.pad(x, margins)
