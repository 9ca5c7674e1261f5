"""What the rollout explorer says of video: equations, how to read the figure, what became of one's own clip."""

from __future__ import annotations

from html import escape

from rollout_text import OBJECTIVE
from theme import chapter, equation
from video_frames import LENGTH, Columns, Setting

from phibe.experiments.video.clips import LARGEST, LONGEST, SUFFIXES, Own
from phibe.experiments.video.methods import AUGMENTED, CONDITIONED

NAMES = {
    AUGMENTED: "flow of frame and velocity",
    CONDITIONED: "flow conditioned on the previous frame",
    "pfi": "PFI",
    "mcvd": "MCVD",
}
"""Methods as the menu has them; others by their own name."""
HOW = {
    AUGMENTED: "The state holds the code of a frame and how fast it changes, both from the last two frames seen; a flow"
    " carries it on.",
    CONDITIONED: "A flow carries the code of the last frame on, and is conditioned on that of the previous frame.",
    "pfi": "PFI draws the next frame by a stochastic differential equation that starts from the present one, then the"
    " one after it: one of many possible futures.",
    "mcvd": "MCVD denoises a block of frames at a time, given those before it: one of many possible futures.",
    "persistence": "The last frame that was seen stays, as the codec returns it.",
    "constant velocity": "The code goes on as it moved between the last two frames that were seen.",
}
LINES = {
    AUGMENTED: [r"s = \bigl(z,\ \tfrac{z - z_-}{\Delta t}\bigr)", r"\dot s = v(s, t)"],
    CONDITIONED: [r"\dot z = v(z, t \mid z_-)"],
    "pfi": [r"dz_\tau = b(z_\tau, \tau \mid z)\,d\tau + \sigma(1-\tau)\,dW_\tau", r"z_0 = z,\quad z_1 = z_+"],
    "mcvd": [r"z_k = \sqrt{\bar\alpha_k}\,z_+ + \sqrt{1-\bar\alpha_k}\,\varepsilon"],
    "persistence": [r"z(t) = z(0)"],
    "constant velocity": [r"z(t) = z(0) + t\,\tfrac{z(0) - z_-}{\Delta t}"],
}
FLOWS = (AUGMENTED, CONDITIONED)


def reading(setting: Setting, columns: Columns) -> str:
    """How to read the figure, with the scores of the whole clip."""
    ends = {name: columns[f"{name}_mse"][-1] for name in ("guess", "still", "codec")}
    frames = len(columns["t"]) - setting.context
    scores = (
        f"Over {frames} frames its MSE is {ends['guess']:.4f}; persistence has {ends['still']:.4f}, and the codec "
        f"alone, given the true frames, {ends['codec']:.4f}: less is out of reach for what is decoded."
    )
    return f"<p>{HOW[setting.method]} {scores} {_slow(setting)} {_foreign(setting)}</p>"


def _slow(setting: Setting) -> str:
    if setting.slow == 1:
        return ""
    if setting.method in ("pfi", "mcvd"):
        return "It knows whole frames alone: in slow motion each is shown longer."
    if setting.method == "persistence":
        return ""
    finer = f"its steps are {setting.slow} times as short, so its whole frames are not quite those of full speed"
    also = f": {finer}" if setting.method in FLOWS else ""
    return f"It has a value at any time{also}. The truth was filmed at whole frames, where alone they are compared."


def _foreign(setting: Setting) -> str:
    if setting.upload:
        return "All was trained on drawn figures alone: of a real video the codec already loses much."
    return "The figure is drawn, of a person that no training has seen."


def equations(setting: Setting) -> str:
    """Codec, dynamics and objective, with a link to where such flows are explained."""
    lines = [r"z = T_\phi(\text{frame}) \in \mathbb R^{4\times 8\times 8}", *LINES[setting.method]]
    if setting.objective:
        lines.append(rf"v = \arg\min\ \overline{{{OBJECTIVE[setting.objective]}}}")
    link = f"How all of this is trained and what it is worth: {chapter('10_video', 'Video')}."
    seen = "PSNR is 10 log₁₀(1/MSE) of the mean MSE, as published tables have it; grey goes from 0 to 1."
    return "".join(map(equation, lines)) + f"<p>{seen} {link}</p>"


# -- one's own clip ----------------------------------------------------------------------------------------------------


def invitation() -> str:
    """What may be uploaded, and what becomes of it."""
    kinds = ", ".join(suffix.removeprefix(".") for suffix in SUFFIXES)
    return (
        f"<p>{kinds}; up to {LARGEST // 2**20} MB, of which {LONGEST} frames are kept. It stays on this server, in "
        "this session, and is forgotten with it.</p>"
    )


def taken(name: str, own: Own) -> str:
    """What was made of a file."""
    changes = "".join(f"; {change}" for change in own.changes)
    window = f" {LENGTH} of them are shown at a time." if len(own.frames) > LENGTH else ""
    return f"<p><b>{escape(name)}</b>: {len(own.frames)} frames{changes}.{window}</p>"


def refused(name: str, reason: Exception) -> str:
    """Why a file was not taken."""
    text = escape(str(reason) or type(reason).__name__)
    return f'<p class="note">{escape(name)} is not shown; the figure is still the last one. {text}</p>'


MISSING = (
    '<p class="note">There is no trained video model here, artifacts/video is missing. <code>phibe run video</code> '
    "trains one in about an hour, <code>phibe artifacts</code> keeps it for the apps; then start the server again. The "
    "pendulum is there without it.</p>"
)
