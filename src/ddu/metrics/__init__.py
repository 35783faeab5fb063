"""How good are scores and probabilities? Out of distribution is the positive class; larger means more uncertain.

Pure functions of tensors, worked out in float64 and returned as plain floats:

- ranking: does the score order the two kinds? `auroc`, `average_precision`, `fpr_at_tpr`, `fpr_at_id_kept`, `roc_curve`
- predictions: are the probabilities right? `accuracy`, `negative_log_likelihood`, `brier_score`,
  `expected_calibration_error`, `calibration_bins`
- selection: is what is left right, if the most uncertain is refused? `risk_coverage`, `selective_accuracy`
- aggregation: several seeds as one figure, `mean_and_standard_error`
"""

from ddu.metrics.aggregation import MeanAndStandardError as MeanAndStandardError
from ddu.metrics.aggregation import mean_and_standard_error as mean_and_standard_error
from ddu.metrics.predictions import CalibrationBins as CalibrationBins
from ddu.metrics.predictions import accuracy as accuracy
from ddu.metrics.predictions import brier_score as brier_score
from ddu.metrics.predictions import calibration_bins as calibration_bins
from ddu.metrics.predictions import expected_calibration_error as expected_calibration_error
from ddu.metrics.predictions import negative_log_likelihood as negative_log_likelihood
from ddu.metrics.ranking import auroc as auroc
from ddu.metrics.ranking import average_precision as average_precision
from ddu.metrics.ranking import fpr_at_id_kept as fpr_at_id_kept
from ddu.metrics.ranking import fpr_at_tpr as fpr_at_tpr
from ddu.metrics.ranking import roc_curve as roc_curve
from ddu.metrics.selection import RiskCoverage as RiskCoverage
from ddu.metrics.selection import risk_coverage as risk_coverage
from ddu.metrics.selection import selective_accuracy as selective_accuracy

__all__ = [
    "CalibrationBins",
    "MeanAndStandardError",
    "RiskCoverage",
    "accuracy",
    "auroc",
    "average_precision",
    "brier_score",
    "calibration_bins",
    "expected_calibration_error",
    "fpr_at_id_kept",
    "fpr_at_tpr",
    "mean_and_standard_error",
    "negative_log_likelihood",
    "risk_coverage",
    "roc_curve",
    "selective_accuracy",
]
