"""The settings of T-FedAvg, and its presets (docs/recipe.md says what each choice is for)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ternfed.algorithms.rest import BUFFER_BITS, FINEST, USUAL, check_finest
from ternfed.algorithms.statistics import Statistics
from ternfed.quantize.ternary import FactorGradient, Quantizer, Rule, Scale
from ternfed.wire import Kind


class Start(StrEnum):
    """Where w^q starts in each round."""

    MEAN = "mean"
    """The mean size of the received weights above the threshold."""
    ONE = "one"


class Latents(StrEnum):
    """The scale of the latent weights at the start of a round."""

    RECEIVED = "received"
    NORMALISED = "normalised"
    """θ / max|θ|: in [-1, 1], so that the rate at which trits flip does not depend on the layer's scale."""


class Upload(StrEnum):
    """What clients send of the ternary layers."""

    AUTO = "auto"
    """Trits where the network has BatchNorm, which makes up for the scale of noisy layers, and clients have samples
    enough for a hundred quantized steps per round; else differences."""
    TRITS = "trits"
    """The trits of a network that was trained to be ternary."""
    DIFFERENCES = "differences"
    """How far plain training moved the weights from the received trits, in a few bits each; the server adds the mean to
    latent weights of its own, whose trits it broadcasts."""


class Judging(StrEnum):
    """Who says whether the quantized broadcast has collapsed."""

    SERVER = "server"
    """Data held out on the server: quantized against averaged model, before either is sent."""
    CLIENTS = "clients"
    """The clients' score of the broadcast they received, against the best they reported so far: a collapse is
    noticed one round later, and the next broadcast is in full precision."""
    OFF = "off"
    """Strategy I in every round."""


@dataclass(frozen=True)
class Settings:
    """T-FedAvg's settings."""

    upload: Upload = Upload.AUTO
    difference_bits: int = 2
    """Of each weight in an upload of differences: 1 and 2 bits are -1, 0 or +1 times a step, rounded at random."""
    server_rate: float = 1.0
    """So much of the mean difference is added to the server's latent weights."""
    settle_at_decay: float | None = 0.15
    """When the rates have decayed to this share, the ternary layers rest, where clients send differences and there are
    other matrices, which learn on around the trits that will stay. "none": they never rest."""
    rest_bits_up: int | None = 3
    """Of each number that is not ternary, in uploads: its change, rounded at random. "none": floats (`dense`)."""
    rest_bits_down: int | None = 3
    """And in broadcasts: of its change since the last one, rounded to nearest. "none": floats."""
    finest_bits: int = USUAL
    """No step of a broadcast is finer than this: the largest number of a row has at most so many bits."""
    buffer_bits: int = BUFFER_BITS
    """Where these travel in bits: of each number of a buffer, in both directions."""
    full_bits: int | None = 4
    """Of each weight of the ternary layers in a broadcast that is not ternary (Strategy II). "none": floats."""
    rule: Rule = Rule.MEAN
    """Threshold rule on the client: Δ = factor · mean|θ| or factor · max|θ|."""
    factor: float = 0.7
    """Threshold factor on the client: T_k, or its lower end when randomised."""
    randomise: bool = False
    """Draw T_k anew for each client and round from [factor, factor + 0.01) (eq. tk)."""
    scale: Scale = Scale.TRAINED
    """w^q `trained`, a `pair` w_p and w_n trained, or the `mean` of the kept weights."""
    gradient: FactorGradient = FactorGradient.SCALED
    start: Start = Start.MEAN
    latents: Latents = Latents.NORMALISED
    clip: float | None = 1.0
    """Latent weights stay in [-clip, clip]; "none": they are not clipped."""
    latent_adam: float | None = 0.035
    """Latent weights are moved by an Adam of their own at this rate in the first round, which falls as the others do:
    the rate of flips does not depend on the optimizer of the other weights. "none": by that one."""
    latent_decay: float = 0.7
    """That rate falls with this power of the others' decay: below 1, trits settle later than the rest does."""
    latent_rate: float = 1.0
    """Where the others' optimizer moves them too: at so many times its rate."""
    factor_rate: float | None = None
    """And the factors at so many times; none: 1 with SGD, 0.1 with Adam, whose steps do not shrink by themselves."""
    keep_latents: bool = False
    """A client keeps its latent weights between rounds where the broadcast agrees with its own trit."""
    plain_epochs: int | None = None
    """So many first local epochs train without quantization; none: three fifths of them, rounded down."""
    server_rule: Rule = Rule.MEAN
    server_factor: float = 0.7
    hold: float = 0.0
    """Where clients send differences: a weight gets a trit, or loses it, only by this part of the threshold beyond it.
    Fewer trits flip back and forth, and broadcasts are smaller."""
    error_feedback: float = 1.0
    """So much of what a requantization lost is added to the next average: votes of a few clients add up over rounds."""
    ternary_start: bool = True
    """The first broadcast, the model before training, is quantized too."""
    full_at_decay: float | None = 0.25
    """When the rates have decayed to this share, one broadcast goes out in full precision, where clients send trits:
    they see which trits their votes agree on and which are in doubt, and settle those. "none": never."""
    full_at: tuple[float, ...] = ()
    """Or after these shares of the rounds."""
    judging: Judging = Judging.SERVER
    tolerance: float = 0.03
    """Strategy II when the quantized model is worse by more than this: a share (accuracy: 0 to 1) by so much, any other
    score, such as an error or a perplexity, by this part of it."""
    statistics: Statistics = Statistics.BEST
    dense: Kind = Kind.FLOAT32
    """The precision that layers which are not ternary travel in."""
    send_first: bool = True
    """False: the first layer is not transmitted, and stays as it was at the start on every side."""

    def __post_init__(self) -> None:
        Quantizer(self.rule, self.factor)
        Quantizer(self.server_rule, self.server_factor)
        for key in ("difference_bits", "rest_bits_up", "rest_bits_down", "buffer_bits", "full_bits"):
            bits = getattr(self, key)
            if bits is not None and not 1 <= bits <= 16:
                raise ValueError(f"{key} = {bits}: 1 to 16 is allowed")
        rates = ("latent_rate", "latent_adam", "latent_decay", "server_rate", "factor_rate")
        for key in (*rates, "plain_epochs", "error_feedback", "tolerance"):
            if (getattr(self, key) or 0) < 0:
                raise ValueError(f"{key} = {getattr(self, key)}: at least 0 is needed")
        for share in self.full_at:
            if not 0 < share < 1:
                raise ValueError(f"full_at = {list(self.full_at)}: shares of the rounds between 0 and 1 are needed")
        for key in ("full_at_decay", "settle_at_decay"):
            share = getattr(self, key)
            if share is not None and not 0 < share < 1:
                raise ValueError(f"{key} = {share}: a share between 0 and 1 is needed, or none")
        if not 0 <= self.hold < 1:
            raise ValueError(f"hold = {self.hold}: at least 0 and less than 1 is needed")
        check_finest(self.finest_bits)
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip = {self.clip}: a number above 0 is needed, or none")


PRESETS: Mapping[str, Settings] = {
    "paper": Settings(
        upload=Upload.TRITS,
        difference_bits=1,
        settle_at_decay=None,
        finest_bits=FINEST,
        rest_bits_up=None,
        rest_bits_down=None,
        full_bits=None,
        factor=0.05,
        randomise=True,
        gradient=FactorGradient.PAPER,
        latents=Latents.RECEIVED,
        clip=None,
        latent_adam=None,
        latent_decay=1.0,
        factor_rate=1.0,
        plain_epochs=0,
        server_rule=Rule.MAX,
        server_factor=0.05,
        error_feedback=0.0,
        ternary_start=False,
        full_at_decay=None,
        statistics=Statistics.AVERAGE,
    ),
    "frozen": Settings(upload=Upload.TRITS, latent_adam=0.0, plain_epochs=0, full_at_decay=None),
}
"""`paper`: as published. `frozen`: the control whose trits never change, so that only scales and the other layers
learn."""
