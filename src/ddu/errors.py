"""Every error and warning of the library.

    DDUError
    ├── InputError (ValueError)               data or an argument is wrong: the message says what, where and the way out
    │   ├── FeatureError                      features: NaN, infinite, overflowed, of another width
    │   ├── LabelError                        labels: out of range, not integers, a class with too few samples
    │   ├── DataError (OSError)               a data set is not there, incomplete or corrupt
    │   └── LayerError                        the feature layer cannot be found, or there are several candidates
    ├── NotFittedError (RuntimeError, ValueError, AttributeError)   scored before it was fitted
    ├── NotSupportedError (NotImplementedError)   a combination of options that has no meaning
    ├── TrainingError (RuntimeError)          training cannot go on: the loss is not a number, the disk is full
    ├── ArtifactError (OSError, ValueError)   a saved detector or checkpoint is truncated, tampered with or too new
    └── MissingExtraError (ImportError)       an optional dependency is not installed: the message has the command

    DDUWarning (UserWarning)
    ├── FewSamplesWarning                     a class has too few samples for the covariance asked for
    ├── DataWarning                           files of a data set were left out
    ├── CalibrationWarning                    the held-out data cannot settle what was asked of it
    └── CheckpointWarning                     a checkpoint cannot be read, and training resumes from the one before it

Each error also derives from the built-in that people already catch.
"""


class DDUError(Exception):
    """Base of every error raised by the library."""


class InputError(DDUError, ValueError):
    """Data or an argument is wrong."""


class FeatureError(InputError):
    """Features are not finite, overflowed, or have another width than the fitted ones."""


class LabelError(InputError):
    """Labels are not integers, out of range, or leave a class with too few samples."""


class DataError(InputError, OSError):
    """A data set is not there, incomplete or corrupt."""


class LayerError(InputError):
    """The feature layer cannot be found, or there are several candidates."""


class NotFittedError(DDUError, RuntimeError, ValueError, AttributeError):
    """Something was scored before it was fitted."""


class NotSupportedError(DDUError, NotImplementedError):
    """A combination of options that has no meaning."""


class TrainingError(DDUError, RuntimeError):
    """Training cannot go on."""


class ArtifactError(DDUError, OSError, ValueError):
    """A saved detector or checkpoint is truncated, tampered with, too new, or belongs to another model."""


class MissingExtraError(DDUError, ImportError):
    """An optional dependency is not installed."""


class DDUWarning(UserWarning):
    """Base of every warning issued by the library."""


class FewSamplesWarning(DDUWarning):
    """A class has too few samples for the covariance asked for."""


class DataWarning(DDUWarning):
    """Files of a data set were left out."""


class CalibrationWarning(DDUWarning):
    """The held-out data cannot settle what was asked of it."""


class CheckpointWarning(DDUWarning):
    """A checkpoint cannot be read, and training resumes from the one before it."""
