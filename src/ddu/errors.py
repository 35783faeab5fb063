"""Every error and warning of the library.

    DDUError
    ├── InputError (ValueError)               data or an argument is wrong: the message says what, where and the way out
    │   ├── FeatureError                      features: NaN, infinite, overflowed, of another width
    │   ├── LabelError                        labels: out of range, not integers, a class with too few samples
    │   ├── DataError (OSError)               a data set is not there, incomplete or corrupt
    │   ├── LayerError                        the feature layer cannot be found, or there are several candidates
    │   └── NotMeasuredError                  rows lack what a claim is judged by: it was not measured yet, or failed
    ├── NotFittedError (RuntimeError, ValueError, AttributeError)   scored before it was fitted
    ├── NotSupportedError (NotImplementedError)   a combination of options that has no meaning
    ├── OutOfMemoryError (MemoryError)        what was asked for does not fit: the message has both sizes
    ├── TrainingError (RuntimeError)          training cannot go on: the loss is not a number, the disk is full
    ├── RankError (RuntimeError)              another of several processes has failed: the message has its reason
    ├── ExportError (RuntimeError)            a network cannot be exported, or its graph disagrees with PyTorch
    ├── ArtifactError (OSError, ValueError)   a saved detector or checkpoint is truncated, tampered with or too new
    └── MissingExtraError (ImportError)       an optional dependency is not installed: the message has the command

    DDUWarning (UserWarning)
    ├── FewSamplesWarning                     a class has too few samples for the covariance asked for
    ├── CovarianceWarning                     the covariance was decided to be a simpler one than one matrix per class
    ├── DataWarning                           files of a data set were left out
    ├── LabelWarning                          labels agree with the model's predictions no more than by chance
    ├── LogitsWarning                         the model returns log-probabilities where logits are needed
    ├── OverlapWarning                        held-out data was in the training pass
    ├── AugmentationWarning                   a loader gives another input each time that a sample is read
    ├── ScaleWarning                          inputs are not scaled as those of the fit
    ├── BlindSpotWarning                      inputs that are plainly unknown are not flagged
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


class NotMeasuredError(InputError):
    """Rows lack what a claim is judged by: it was not measured yet, or failed."""


class NotFittedError(DDUError, RuntimeError, ValueError, AttributeError):
    """Something was scored before it was fitted."""


class NotSupportedError(DDUError, NotImplementedError):
    """A combination of options that has no meaning."""


class OutOfMemoryError(DDUError, MemoryError):
    """What was asked for does not fit into the memory that is available."""


class TrainingError(DDUError, RuntimeError):
    """Training cannot go on."""


class RankError(DDUError, RuntimeError):
    """Another of the processes that work together has failed."""


class ExportError(DDUError, RuntimeError):
    """A network cannot be exported, or the exported graph disagrees with PyTorch."""


class ArtifactError(DDUError, OSError, ValueError):
    """A saved detector or checkpoint is truncated, tampered with, too new, or belongs to another model."""


class MissingExtraError(DDUError, ImportError):
    """An optional dependency is not installed."""


class DDUWarning(UserWarning):
    """Base of every warning issued by the library."""


class FewSamplesWarning(DDUWarning):
    """A class has too few samples for the covariance asked for."""


class CovarianceWarning(DDUWarning):
    """The covariance was decided to be a simpler one than one matrix per class."""


class DataWarning(DDUWarning):
    """Files of a data set were left out."""


class LabelWarning(DDUWarning):
    """Labels agree with the model's predictions no more than by chance."""


class LogitsWarning(DDUWarning):
    """The model returns log-probabilities where logits are needed."""


class OverlapWarning(DDUWarning):
    """Held-out data was in the training pass."""


class AugmentationWarning(DDUWarning):
    """A loader gives another input each time that a sample is read."""


class ScaleWarning(DDUWarning):
    """Inputs are not scaled as those of the fit."""


class BlindSpotWarning(DDUWarning):
    """Inputs that are plainly unknown are not flagged."""


class CalibrationWarning(DDUWarning):
    """The held-out data cannot settle what was asked of it."""


class CheckpointWarning(DDUWarning):
    """A checkpoint cannot be read, and training resumes from the one before it."""
