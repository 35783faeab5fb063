"""Everything that decides what the set is like, besides MNIST and the seed; and the two scales."""

from dataclasses import dataclass, field

from ddu.data.dirty_mnist._mixing import Mixing
from ddu.data.dirty_mnist._selection import Filters, Stratification
from ddu.data.dirty_mnist._training import Training
from ddu.errors import InputError


@dataclass(frozen=True)
class Settings:
    """How Ambiguous-MNIST is made.

    Attributes:
        vae: How the autoencoder learns.
        labeller: How each labeller learns.
        mixing: What is mixed.
        filters: What a mixture must be like.
        strata: How the images are chosen.
        members: Labellers in the ensemble.
        labels: Labels drawn an image.
    """

    vae: Training
    labeller: Training
    mixing: Mixing
    filters: Filters
    strata: Stratification = field(default_factory=Stratification)
    members: int = 5
    labels: int = 10

    def __post_init__(self) -> None:
        if self.mixing.pool < self.strata.images:
            raise InputError(
                f"{self.strata.images:,} images cannot be chosen from a pool of {self.mixing.pool:,} mixtures."
            )
        if self.mixing.digits < 2:
            raise InputError(f"A mixture has at least 2 digits. Got digits={self.mixing.digits} instead.")


SCALES = {
    "cpu": Settings(
        vae=Training(epochs=20, drops=(12, 17)),
        labeller=Training(epochs=4, drops=(3,)),
        mixing=Mixing(pool=12_000, concentration=3.0),
        # Stricter than the paper where one can see it: two readings that a person would consider, in white strokes
        filters=Filters(
            min_entropy=0.5,
            max_entropy=1.1,
            max_mutual_information=0.05,
            min_second=0.2,
            min_ink=0.7,
            first_look=0.95,
        ),
    ),
    "paper": Settings(
        vae=Training(epochs=74, drops=(25, 50, 65)),
        labeller=Training(epochs=19),
        mixing=Mixing(pool=2**21, per_tuple=64),
        filters=Filters(min_entropy=0.05, max_entropy=1.6, max_mutual_information=0.05),
    ),
}
"""`cpu` takes minutes on two cores; `paper` has the numbers of the paper's public code, and takes hours there."""
